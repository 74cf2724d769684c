"""The anthropic SDK against the router's Messages endpoint."""

from collections.abc import AsyncIterator

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam

from support import behaviours
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Leg
from support.vllm_api import MODEL, WORDS

TEXT = "".join(WORDS)
TURNS: list[MessageParam] = [{"role": "user", "content": "hi"}]


def connect(fleet: Fleet, *, max_retries: int = 2) -> AsyncAnthropic:
    return AsyncAnthropic(
        base_url=fleet.router.url, api_key="k", max_retries=max_retries, timeout=10
    )


@pytest.fixture
async def sdk(fleet: Fleet) -> AsyncIterator[AsyncAnthropic]:
    async with connect(fleet) as client:
        yield client


async def test_a_message(sdk: AsyncAnthropic, fleet: Fleet) -> None:
    answer = await sdk.messages.create(model=MODEL, max_tokens=50, messages=TURNS)
    assert answer.content[0].type == "text"
    assert answer.content[0].text == TEXT
    assert answer.stop_reason == "end_turn"
    [leg] = fleet.p.asked(Leg.PREFILL)
    assert leg.request.json()["max_tokens"] == 1
    request = fleet.d.asked(Leg.DECODE)[0].request
    # Releases of the SDK differ in where they put the key.
    assert "k" in (request.header("x-api-key"), *(request.header("authorization") or "").split())


async def test_a_stream(sdk: AsyncAnthropic) -> None:
    async with sdk.messages.stream(model=MODEL, max_tokens=50, messages=TURNS) as stream:
        pieces = [piece async for piece in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(pieces) == TEXT
    assert final.usage.output_tokens == len(WORDS)


async def test_a_cut_stream_is_an_error(sdk: AsyncAnthropic, fleet: Fleet) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.die_in_body(4)
    stream = await sdk.messages.create(model=MODEL, max_tokens=50, messages=TURNS, stream=True)
    with pytest.raises(anthropic.APIError, match="decode-0"):
        async for _ in stream:
            pass
    assert len(fleet.d.asked()) == 1


async def test_own_errors_are_read_by_the_sdk(fleet: Fleet) -> None:
    fleet.p.by_leg[Leg.PREFILL] = behaviours.hang
    async with connect(fleet, max_retries=0) as sdk:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await sdk.messages.create(model=MODEL, max_tokens=5, messages=TURNS)
    assert caught.value.status_code == 504
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "timeout_error", "message": caught.value.body["error"]["message"]},  # type: ignore[index]
    }


async def test_the_routers_retry_is_not_multiplied() -> None:
    async with serve_fleet(2, 1) as fleet, connect(fleet) as sdk:
        for engine in fleet.prefill:
            engine.by_leg[Leg.PREFILL] = behaviours.refuse(503)
        with pytest.raises(anthropic.APIStatusError):
            await sdk.messages.create(model=MODEL, max_tokens=5, messages=TURNS)
        assert sum(len(engine.asked()) for engine in fleet.prefill) == 2
