"""What is read on the loop, what beside it, and what not at all."""

import asyncio
import threading

import msgspec
import pytest

from transload_router.core.bodies.members import read_members
from transload_router.core.tokens.job import KnownTokens, Reason, TextJob, Unknown
from transload_router.core.tokens.read import read_prompt
from transload_router.io.tokenizer import PromptReader, reader
from transload_router.io.tokenizer.reader import Read

TEXT = "prose of no great interest " * 20_000
LIGHT = msgspec.json.encode({"prompt": "few words"})
LONG_TEXT = msgspec.json.encode({"prompt": TEXT})
MANY_VALUES = msgspec.json.encode({"prompt": TEXT, "bias": {str(n): 1 for n in range(6_000)}})
LONGER_TEXT = msgspec.json.encode({"prompt": TEXT * 3})
MANY_IDS = msgspec.json.encode({"prompt": [1000] * 300_000})
TOO_LONG = msgspec.json.encode({"prompt": "x" * (8 << 20)})
TOO_MANY_VALUES = msgspec.json.encode({"prompt": TEXT, "bias": {str(n): 1 for n in range(130_000)}})


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads in which prompts are read."""
    names: list[str] = []

    def noting(endpoint: str, members: dict[str, msgspec.Raw]) -> Read:
        names.append(threading.current_thread().name)
        return read_prompt(endpoint, members)

    monkeypatch.setattr(reader, "read_prompt", noting)
    return names


@pytest.mark.parametrize(
    ("body", "is_beside"),
    [
        pytest.param(LIGHT, False, id="light"),
        pytest.param(LONG_TEXT, False, id="long text"),
        pytest.param(MANY_VALUES, True, id="many values"),
        pytest.param(LONGER_TEXT, True, id="longer text"),
        pytest.param(MANY_IDS, True, id="many ids"),
    ],
)
async def test_where_it_is_read(body: bytes, is_beside: bool, threads: list[str]) -> None:
    prompts = PromptReader()
    found, is_heavy = await prompts.read("completions", read_members(body), body)
    prompts.close()
    assert isinstance(found, TextJob | KnownTokens)
    assert is_heavy is is_beside
    assert [name.startswith("reader") for name in threads] == [is_beside]


@pytest.mark.parametrize("body", [TOO_LONG, TOO_MANY_VALUES], ids=["long", "many values"])
async def test_what_is_too_much_is_not_read(body: bytes, threads: list[str]) -> None:
    prompts = PromptReader()
    found, is_heavy = await prompts.read("completions", read_members(body), body)
    prompts.close()
    assert (found, is_heavy) == (Unknown(Reason.NOT_READ), True)
    assert threads == []


async def test_who_finds_too_many_waiting_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def waiting(endpoint: str, members: dict[str, msgspec.Raw]) -> Read:
        gate.wait()
        return TextJob("t")

    monkeypatch.setattr(reader, "read_prompt", waiting)
    prompts, members = PromptReader(), read_members(LONGER_TEXT)
    asked = [
        asyncio.create_task(prompts.read("completions", members, LONGER_TEXT)) for _ in range(17)
    ]
    try:
        assert await asked[-1] == (Unknown(Reason.NOT_READ), True)
    finally:
        gate.set()
    assert await asyncio.gather(*asked[:-1]) == [(TextJob("t"), True)] * 16
    found, _ = await prompts.read("completions", members, LONGER_TEXT)
    prompts.close()
    assert found == TextJob("t")
