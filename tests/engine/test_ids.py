"""A prompt is tokenised once: engines get its ids, and answer as if they had read the text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from engine.world import EXPLAIN, SPLITTING, Ledger, World, events
from real_engine.launch import MODEL_NAME
from real_engine.router import RouterProcess
from real_engine.tap import Tap

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "def area(width, height): return width * height\n" * 8
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Täglich ☀",
        "parameters": {"type": "object", "properties": {"unit": {"enum": ["c", "f"]}}},
    },
}
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}


def _say(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": _say(TEXT)}),
    "unicode": (CHAT, {"messages": _say("naïve 東京 🙂 <|im_end|> \u200d e\u0301 " * 9)}),
    "tools": (CHAT, {"messages": _say(TEXT), "tools": [WEATHER]}),
    "calls": (
        CHAT,
        {
            "messages": [
                *_say(TEXT),
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "🙂"},
            ],
            "tools": [WEATHER],
        },
    ),
    "completion": (COMPLETIONS, {"prompt": TEXT + "naïve 東京"}),
}


@dataclass(frozen=True)
class Tapped:
    """A router, and what its two engines are asked."""

    by_router: bool
    router: RouterProcess
    prefill: Tap
    decode: Tap


@pytest.fixture(scope="module", params=["router", "prefill"])
def tapped(
    request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tapped]:
    """By whom prompts are tokenised: the router, or prefill, which tells it."""
    options = SPLITTING if request.param == "router" else (*SPLITTING, "--tokenizer", "none")
    folder = tmp_path_factory.mktemp("tapped")
    with (
        Tap(world.prefill, folder / "prefill") as prefill,
        Tap(world.decode, folder / "decode") as decode,
        RouterProcess([prefill.url], [decode.url], folder / "log", options) as router,
    ):
        router.wait_ready()
        yield Tapped(request.param == "router", router, prefill, decode)


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("name", REQUESTS)
def test_answers_are_those_of_the_text(
    world: World, client: httpx.Client, tapped: Tapped, name: str, is_stream: bool
) -> None:
    by_router = tapped.by_router
    path, members = REQUESTS[name]
    body = {"model": MODEL_NAME, "max_tokens": 24, "temperature": 0, "stream": is_stream, **members}
    theirs = client.post(f"{world.aggregated.url}{path}", json={**body, **_TELLING})
    ids = _prompt_ids(theirs)
    if is_stream:
        body["stream_options"] = {"include_usage": True}
    tapped.prefill.take()
    tapped.decode.take()
    ledger = Ledger(world)
    for is_told in (True, False):
        asked = {**body, **_TELLING} if is_told else body
        ours = client.post(f"{tapped.router.url}{path}", json=asked, headers=EXPLAIN)
        assert ours.status_code == 200, ours.text
        prefill, decode = tapped.prefill.take(), tapped.decode.take()
        assert ours.headers["x-transload-prompt"] == ("router" if by_router else "no_tokenizer")
        assert _answer(ours, is_told=is_told) == _answer(theirs, is_told=is_told)
        assert _prompt_ids(ours) == (ids if is_told else None)
        member = b'"prompt":' if path == COMPLETIONS else b'"prompt_token_ids":'
        given = member + json.dumps(ids, separators=(",", ":")).encode()
        is_asked = not by_router
        assert (given in prefill) == by_router
        assert (given in decode) == (by_router or is_asked)
        assert (b'"return_token_ids":true' in prefill) == is_asked
        assert (b'"return_token_ids":true' in decode) == is_told
    moved = ledger.moved()
    assert ids is not None
    assert len(ids) <= moved.loaded_tokens <= 2 * len(ids)
    assert moved.failed_transfers == 0


_TELLING = {"return_token_ids": True}


def _chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    is_stream = answer.headers["content-type"].startswith("text/event-stream")
    return events(answer.text) if is_stream else [answer.json()]


def _prompt_ids(answer: httpx.Response) -> list[int] | None:
    """The prompt's, wherever this API tells them; None where it does not."""
    holders = [holder for chunk in _chunks(answer) for holder in (chunk, *chunk["choices"])]
    told = [holder["prompt_token_ids"] for holder in holders if holder.get("prompt_token_ids")]
    return told[0] if told else None


def _answer(answer: httpx.Response, *, is_told: bool) -> tuple[Any, ...]:
    """What was said, why it ended, and by which tokens where that was asked for."""
    choices = [choice for chunk in _chunks(answer) for choice in chunk["choices"]]
    parts = [one.get("message") or one.get("delta") or one for one in choices]
    return (
        "".join(part.get("content") or part.get("text") or "" for part in parts),
        [call for part in parts for call in part.get("tool_calls") or ()],
        choices[-1]["finish_reason"],
        [token for one in choices for token in one.get("token_ids") or ()] if is_told else None,
    )
