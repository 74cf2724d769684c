"""The openai SDK against the router: what its users do, and what it makes of our errors."""

from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI

from support import behaviours
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Leg
from support.vllm_api import MODEL, WORDS

TEXT = "".join(WORDS)


@pytest.fixture
async def sdk(fleet: Fleet) -> AsyncIterator[AsyncOpenAI]:
    async with connect(fleet) as client:
        yield client


def connect(fleet: Fleet, *, max_retries: int = 2) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=fleet.router.url + "/v1", api_key="k", max_retries=max_retries, timeout=10
    )


async def test_models(sdk: AsyncOpenAI) -> None:
    listed = [model async for model in sdk.models.list()]
    assert [model.id for model in listed] == [MODEL]
    assert (await sdk.models.retrieve(MODEL)).id == MODEL


async def test_chat(sdk: AsyncOpenAI, fleet: Fleet) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_completion_tokens=50
    )
    assert answer.choices[0].message.content == TEXT
    assert len(fleet.d.asked(Leg.DECODE)) == 1


async def test_chat_stream_with_usage(sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == "stop"


async def test_completions_with_token_ids(sdk: AsyncOpenAI, fleet: Fleet) -> None:
    answer = await sdk.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=50)
    assert answer.choices[0].text == TEXT
    stream = await sdk.completions.create(model=MODEL, prompt=[1, 2, 3], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT
    assert len(fleet.d.asked(Leg.DECODE)) == 2


async def test_responses(sdk: AsyncOpenAI) -> None:
    answer = await sdk.responses.create(model=MODEL, input="hi")
    assert answer.output_text == TEXT
    stream = await sdk.responses.create(model=MODEL, input="hi", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.completed"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == TEXT


async def test_a_cut_stream_is_an_error_and_is_not_repeated(sdk: AsyncOpenAI, fleet: Fleet) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.die_in_body(3)
    chat = await sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="decode-0"):
        async for _ in chat:
            pass
    responses = await sdk.responses.create(model=MODEL, input="hi", stream=True)
    seen = []
    try:
        async for event in responses:
            seen.append(event.type)
    except openai.APIError:
        seen.append("error")
    assert seen[-1] == "error"
    assert len(fleet.d.asked()) == 2


async def test_the_routers_retry_is_not_multiplied() -> None:
    """Two engines failed: two legs in all, not two for each of the SDK's three tries."""
    async with serve_fleet(1, 2) as fleet, connect(fleet) as sdk:
        for engine in fleet.decode:
            engine.by_leg[Leg.DECODE] = behaviours.refuse(503)
        with pytest.raises(openai.InternalServerError):
            await sdk.completions.create(model=MODEL, prompt="x")
        assert sum(len(engine.asked()) for engine in fleet.decode) == 2


async def test_what_the_router_did_not_retry_the_sdk_may(fleet: Fleet) -> None:
    """An engine's 429 with its Retry-After is the client's to heed."""
    fleet.p.script.append(behaviours.refuse(429, headers=[("retry-after-ms", "1")]))
    async with connect(fleet) as sdk:
        answer = await sdk.completions.create(model=MODEL, prompt="x")
    assert answer.choices[0].text == TEXT
    assert len(fleet.p.asked()) == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (500, openai.InternalServerError),
    ],
)
async def test_errors_keep_their_class(
    fleet: Fleet, status: int, kind: type[openai.APIStatusError]
) -> None:
    fleet.p.by_leg[Leg.PREFILL] = behaviours.refuse(status, "said by the engine")
    async with connect(fleet, max_retries=0) as sdk:
        with pytest.raises(kind, match="said by the engine"):
            await sdk.completions.create(model=MODEL, prompt="x")


async def test_own_errors_are_read_by_the_sdk(fleet: Fleet) -> None:
    fleet.p.by_leg[Leg.PREFILL] = behaviours.reset_before_header
    async with connect(fleet, max_retries=0) as sdk:
        with pytest.raises(openai.APIStatusError) as caught:
            await sdk.completions.create(model=MODEL, prompt="x")
    assert caught.value.status_code == 502
    assert caught.value.type == "engine_reset"


async def test_the_sdks_key_reaches_the_engines(sdk: AsyncOpenAI, fleet: Fleet) -> None:
    await sdk.completions.create(model=MODEL, prompt="x")
    for exchange in fleet.p.asked() + fleet.d.asked():
        assert exchange.request.header("authorization") == "Bearer k"
