"""K15 in the service: whose blocks and whose tokens they are, on the way from request to choice."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support import behaviours
from support.knowing_engine import (
    EXPLAIN,
    TOKENIZER,
    KnowingVllm,
    KnownFleet,
    ids_of,
    serve_known,
)
from support.scripted_engine import Exchange, Leg
from support.small_tokenizers import made, recorded_files
from support.vllm_api import MODEL, dump
from support.vllm_behaviour import model_card
from support.waiting import until
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.job import ChatJob
from transload_router.core.tokens.tokens import Tokens

CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
TEXT = "Where the river bends there is a mill, and by the mill a bridge. " * 6
MESSAGES = [{"role": "user", "content": TEXT}]
IDS = list(range(100, 200))
PREDICTED, PROMPT = "x-transload-predicted-cached-tokens", "x-transload-prompt"


def adapter(name: str, base: str = MODEL) -> dict[str, Any]:
    return {**model_card(name), "parent": base}


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return made(recorded_files())


def chat_ids(tokens: Tokens, messages: list[dict[str, Any]] = MESSAGES) -> list[int]:
    arguments = {"add_generation_prompt": True, "continue_final_message": False}
    prompt = tokens.prompt(ChatJob(messages, None, arguments), Identity("any"))
    assert isinstance(prompt, Prompt)
    return ids_of(prompt.tokens)


@pytest.fixture
async def exact(tokens: Tokens) -> AsyncIterator[KnownFleet]:
    """The router's tokenizer is the engines'."""
    async with serve_known(2, 1, tokens=tokens, tokenizer=[str(TOKENIZER)]) as known:
        await until(lambda: known.router.tokenizers == {MODEL: "exact"}, "checked")
        yield known


def bodies(known: KnownFleet, leg: Leg) -> list[dict[str, Any]]:
    asked = [one.request for engine in known.fleet.engines for one in engine.asked(leg)]
    return [request.json() for request in asked if request.path != TOKENIZE]


def num_tokenized(known: KnownFleet) -> int:
    asked = [one.request.path for engine in known.fleet.engines for one in engine.exchanges]
    return asked.count(TOKENIZE)


async def test_a_chat_is_found_by_its_tokens_and_tokenised_once(
    exact: KnownFleet, tokens: Tokens
) -> None:
    ids = chat_ids(tokens)
    await exact.hold("prefill-1", ids)
    headers = await exact.ask(CHAT, {"messages": MESSAGES})
    assert headers["x-transload-prefill"] == "prefill-1"
    assert headers[PREDICTED] == str((len(ids) - 1) // 16 * 16)
    assert headers[PROMPT] == "router"
    for leg in (Leg.PREFILL, Leg.DECODE):
        (body,) = bodies(exact, leg)
        assert body["kv_transfer_params"]["prompt_token_ids"] == ids
        assert body["messages"] == MESSAGES
        assert "return_token_ids" not in body
    scrape = await exact.fleet.router.metrics()
    assert scrape.value("transload_prompts_total", source="router") == 1


async def test_a_completions_ids_are_its_prompt_on_both_legs(
    exact: KnownFleet, tokens: Tokens
) -> None:
    headers = await exact.ask(COMPLETIONS, {"prompt": TEXT})
    assert headers[PROMPT] == "router"
    sent = [body["prompt"] for leg in (Leg.PREFILL, Leg.DECODE) for body in bodies(exact, leg)]
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert tokens is not None
    assert all(type(number) is int for number in sent[0])
    assert all(
        "prompt_token_ids" not in body["kv_transfer_params"] for body in bodies(exact, Leg.PREFILL)
    )


async def test_a_completion_of_one_engine_keeps_its_text(exact: KnownFleet) -> None:
    await exact.ask(COMPLETIONS, {"prompt": TEXT, "n": 2})
    (body,) = bodies(exact, Leg.LOCAL)
    assert body["prompt"] == TEXT
    assert "kv_transfer_params" not in body


async def test_a_chat_of_one_engine_is_given_its_ids(exact: KnownFleet, tokens: Tokens) -> None:
    await exact.ask(CHAT, {"messages": MESSAGES, "n": 2})
    (body,) = bodies(exact, Leg.LOCAL)
    assert body["kv_transfer_params"] == {"prompt_token_ids": chat_ids(tokens)}


async def test_an_engine_that_starts_over_is_given_no_ids_until_it_agrees_again(
    exact: KnownFleet,
) -> None:
    """It need not have been found down between."""
    exact.router.on_restart("decode-0")
    await exact.ask(CHAT, {"messages": MESSAGES, "n": 2})
    (body,) = bodies(exact, Leg.LOCAL)
    assert "kv_transfer_params" not in body


@pytest.mark.parametrize("asks", [True, False])
async def test_a_clients_wish_for_ids_is_decodes_alone(exact: KnownFleet, asks: bool) -> None:
    more = {"return_token_ids": True} if asks else {}
    await exact.ask(CHAT, {"messages": MESSAGES, **more})
    (first,), (second,) = bodies(exact, Leg.PREFILL), bodies(exact, Leg.DECODE)
    assert "return_token_ids" not in first
    assert second.get("return_token_ids", False) is asks


MEDIA = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": TEXT},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ],
    }
]


async def test_a_prompt_with_media_has_one_source(exact: KnownFleet) -> None:
    """Ids beside media would expand its placeholders twice."""
    headers = await exact.ask(CHAT, {"messages": MEDIA})
    assert headers[PROMPT] == "media"
    for body in bodies(exact, Leg.PREFILL) + bodies(exact, Leg.DECODE):
        assert "prompt_token_ids" not in body["kv_transfer_params"]
        assert "return_token_ids" not in body
        assert body["messages"] == MEDIA
    again = await exact.ask(CHAT, {"messages": MEDIA})
    assert again["x-transload-prefill"] == headers["x-transload-prefill"]


@pytest.mark.parametrize(
    "part", [b'"type":"image_url","image_url":{"url":"x"}', b'"ima\\u0067e_url":{"url":"x"}']
)
async def test_media_without_a_tokenizer_have_one_source(part: bytes) -> None:
    messages = b'[{"role":"user","content":[{"type":"text","text":"t"},{%s}]}]' % part
    async with serve_known(tokenizer=["none"]) as known:
        answer = await known.fleet.router.client.post(
            CHAT, content=b'{"model":"%s","messages":%s}' % (MODEL.encode(), messages)
        )
        assert answer.status_code == 200
        for body in bodies(known, Leg.PREFILL) + bodies(known, Leg.DECODE):
            assert "prompt_token_ids" not in body["kv_transfer_params"]
            assert "return_token_ids" not in body


@pytest.mark.parametrize("text", ["image_url: none", "\u4f60\u597d", '{"file": "x"}', "uuid"])
async def test_what_only_speaks_of_media_is_text(text: str) -> None:
    async with serve_known(tokenizer=["none"]) as known:
        headers = await known.ask(CHAT, {"messages": [{"role": "user", "content": text}]})
        assert headers[PROMPT] == "no_tokenizer"
        assert bodies(known, Leg.PREFILL)[0]["return_token_ids"] is True


async def test_a_prompt_too_long_to_look_for_media_has_one_source(exact: KnownFleet) -> None:
    picture = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + "A" * 9_000_000},
    }
    messages = [{"role": "user", "content": [{"type": "text", "text": TEXT}, picture]}]
    headers = await exact.ask(CHAT, {"messages": messages})
    assert headers[PROMPT] == "not_read"
    for body in bodies(exact, Leg.PREFILL) + bodies(exact, Leg.DECODE):
        assert "prompt_token_ids" not in body["kv_transfer_params"]
        assert "return_token_ids" not in body


async def test_clients_own_transfer_parameters_never_reach_an_engine(exact: KnownFleet) -> None:
    lie = {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}}
    await exact.ask(CHAT, {"messages": MEDIA, **lie})
    for body in bodies(exact, Leg.PREFILL) + bodies(exact, Leg.DECODE):
        assert "prompt_token_ids" not in body["kv_transfer_params"]


async def test_send_token_ids_off(tokens: Tokens) -> None:
    options: dict[str, Any] = {"tokenizer": [str(TOKENIZER)], "send_token_ids": False}
    async with serve_known(tokens=tokens, **options) as known:
        await until(lambda: known.router.tokenizers == {MODEL: "exact"}, "checked")
        await known.hold("prefill-0", chat_ids(tokens))
        headers = await known.ask(CHAT, {"messages": MESSAGES})
        assert int(headers[PREDICTED]) > 0
        await known.ask(COMPLETIONS, {"prompt": TEXT})
        for body in bodies(known, Leg.PREFILL) + bodies(known, Leg.DECODE):
            assert "prompt_token_ids" not in body["kv_transfer_params"]
            assert "return_token_ids" not in body
            assert body.get("prompt", TEXT) == TEXT


async def test_without_a_tokenizer_prefill_tells_decode() -> None:
    async with serve_known(tokenizer=["none"]) as known:
        headers = await known.ask(CHAT, {"messages": MESSAGES})
        assert headers[PROMPT] == "no_tokenizer"
        (first,), (second,) = bodies(known, Leg.PREFILL), bodies(known, Leg.DECODE)
        assert first["return_token_ids"] is True
        assert "prompt_token_ids" not in first["kv_transfer_params"]
        assert second["kv_transfer_params"]["prompt_token_ids"] == [7, 8, 9]
        assert "return_token_ids" not in second
        await known.ask(COMPLETIONS, {"prompt": TEXT})
        first, second = bodies(known, Leg.PREFILL)[1], bodies(known, Leg.DECODE)[1]
        assert (first["return_token_ids"], first["prompt"]) == (True, TEXT)
        assert second["prompt"] == [7, 8, 9]
        assert "prompt_token_ids" not in second["kv_transfer_params"]


async def test_an_engine_that_refuses_to_tokenise_leaves_the_routers_unchecked(
    tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_known(tokenizer=[str(TOKENIZER)]) as known:
        await until(lambda: "cannot be checked" in caplog.text, "asked")
        assert known.router.tokenizers == {MODEL: "unchecked"}
        ids = chat_ids(tokens)
        await known.hold("prefill-0", ids)
        headers = await known.ask(CHAT, {"messages": MESSAGES})
        assert headers[PROMPT] == "unchecked"
        assert int(headers[PREDICTED]) == (len(ids) - 1) // 16 * 16
        (first,), (second,) = bodies(known, Leg.PREFILL), bodies(known, Leg.DECODE)
        assert "prompt_token_ids" not in first["kv_transfer_params"]
        assert second["kv_transfer_params"]["prompt_token_ids"] == [7, 8, 9], "as prefill read it"
        report = (await known.fleet.router.client.get("/readyz")).json()
        assert report["tokenizers"] == {MODEL: "unchecked"}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def _others(exchange: Exchange) -> None:
    """A tokenizer of bytes."""
    body = exchange.request.json()
    text = body["prompt"] if "prompt" in body else json.dumps(body["messages"])
    ids = list(text.encode())
    await exchange.answer(200, dump({"count": len(ids), "max_model_len": 4096, "tokens": ids}))


class _OtherTokens(KnowingVllm):
    async def __call__(self, exchange: Exchange) -> None:
        if exchange.request.path == "/tokenize":
            await _others(exchange)
        else:
            await super().__call__(exchange)


async def _serve_other(
    caplog: pytest.LogCaptureFixture, fallback: str
) -> AsyncIterator[KnownFleet]:
    def adjust(_name: str, behaviour: KnowingVllm) -> None:
        behaviour.__class__ = _OtherTokens

    options: dict[str, Any] = {"tokenizer": [str(TOKENIZER)], "tokenizer_fallback": fallback}
    async with serve_known(2, 1, adjust=adjust, **options) as known:
        await until(lambda: "is not that of" in caplog.text, "compared")
        yield known


async def test_another_tokenizer_is_refused_and_the_engines_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async for known in _serve_other(caplog, "engine"):
        loud = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
        assert any(f"tokenizer of {MODEL} is not that of" in line for line in loud)
        ids = list(json.dumps(MESSAGES).encode())
        await known.hold("prefill-1", ids)
        headers = await known.ask(CHAT, {"messages": MESSAGES})
        assert headers[PROMPT] == "engine"
        assert headers["x-transload-prefill"] == "prefill-1"
        (first,), (second,) = bodies(known, Leg.PREFILL), bodies(known, Leg.DECODE)
        assert "prompt_token_ids" not in first["kv_transfer_params"]
        assert second["kv_transfer_params"]["prompt_token_ids"] == [7, 8, 9], "as prefill read it"
        report = (await known.fleet.router.client.get("/readyz")).json()
        assert "sent to engines" in report["tokenizers"][MODEL]
        assert (await known.fleet.router.client.get("/healthz")).status_code == 200


async def test_another_tokenizer_is_refused_and_texts_are_matched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async for known in _serve_other(caplog, "none"):
        first = await known.ask(CHAT, {"messages": MESSAGES})
        assert first[PROMPT] == "no_tokenizer"
        num_asked = num_tokenized(known)
        again = await known.ask(CHAT, {"messages": MESSAGES})
        assert num_tokenized(known) == num_asked
        assert int(again[PREDICTED]) > 0


async def test_a_tokenizer_that_is_gone_by_then_is_no_reason_to_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_known(tokenizer=[str(tmp_path)]) as known:
        await until(lambda: "no tokenizer for" in caplog.text, "looked for")
        assert any(one.levelno == logging.ERROR for one in caplog.records)
        client = known.fleet.router.client
        assert (await client.get("/healthz")).status_code == 200
        assert "tokenizer.json" in (await client.get("/readyz")).json()["tokenizers"][MODEL]
        assert (await known.ask(CHAT, {"messages": MESSAGES}))[PROMPT] == "no_tokenizer"


async def test_an_unknown_model_is_matched_as_text() -> None:
    async with serve_known(2, 1) as known:
        chosen = set()
        for _ in range(8):
            headers = await known.ask(CHAT, {"messages": MESSAGES, "model": "of nobody"})
            assert headers[PROMPT] == "unknown_model"
            chosen.add(headers["x-transload-prefill"])
        assert len(chosen) == 1
        scrape = await known.fleet.router.metrics()
        assert scrape.value("transload_prompts_total", source="unknown_model") == 8


async def test_token_ids_need_no_tokenizer() -> None:
    async with serve_known(2, 1, tokenizer=["none"]) as known:
        await known.hold("prefill-1", IDS)
        for path, body in (
            (COMPLETIONS, {"prompt": IDS}),
            (COMPLETIONS, {"prompt": [IDS]}),
            ("/inference/v1/generate", {"token_ids": IDS, "sampling_params": {}}),
        ):
            headers = await known.ask(path, body)
            assert (headers[PROMPT], headers[PREDICTED]) == ("client", "96")
            assert headers["x-transload-prefill"] == "prefill-1"


@pytest.mark.parametrize(
    "prompt", [[], [-1], [1 << 40], [1.5], [True], ["x", 1], [[1], [2]], "", {}, None, [[]]]
)
async def test_prompts_that_are_none(prompt: Any) -> None:
    """What engines refuse comes to them as it is; nothing of it breaks the router."""
    async with serve_known() as known:
        answer = await known.fleet.router.client.post(
            COMPLETIONS, json={"model": MODEL, "prompt": prompt}
        )
        assert answer.status_code in (200, 400)
        sent = bodies(known, Leg.PREFILL) or bodies(known, Leg.LOCAL)
        assert sent[0]["prompt"] == prompt


async def test_the_salt_is_part_of_a_prompt() -> None:
    async with serve_known(2, 1) as known:
        extra = [["zz"]] + [None] * (len(IDS) // 16 - 1)
        await known.hold("prefill-1", IDS, extra_keys=extra)
        salted = await known.ask(COMPLETIONS, {"prompt": IDS, "cache_salt": "zz"})
        assert (salted[PREDICTED], salted["x-transload-prefill"]) == ("96", "prefill-1")
        assert (await known.ask(COMPLETIONS, {"prompt": IDS}))[PREDICTED] == "0"


async def test_a_salt_that_is_no_text_is_the_engines_to_refuse() -> None:
    async with serve_known() as known:
        await known.hold("prefill-0", IDS)
        body = b'{"model":"%s","prompt":[1,2,3],"cache_salt":"\\ud800"}' % MODEL.encode()
        client = known.fleet.router.client
        answer = await client.post(COMPLETIONS, content=body, headers=EXPLAIN)
        assert (answer.status_code, answer.headers[PROMPT]) == (200, "invalid")


async def test_the_salt_is_part_of_a_text() -> None:
    async with serve_known(ranks={"prefill-0": 0, "decode-0": 0}) as known:
        await known.ask(CHAT, {"messages": MESSAGES, "cache_salt": "a"})
        assert (await known.ask(CHAT, {"messages": MESSAGES, "cache_salt": "b"}))[PREDICTED] == "0"
        same = await known.ask(CHAT, {"messages": MESSAGES, "cache_salt": "a"})
        assert int(same[PREDICTED]) > 0


async def test_another_name_of_the_model_is_the_same_model() -> None:
    def adjust(_name: str, behaviour: KnowingVllm) -> None:
        behaviour.models = [model_card(MODEL), model_card("zweitname")]

    options: dict[str, Any] = {"model_name": [f"alias={MODEL}"], "tokenizer": ["none"]}
    async with serve_known(2, 1, adjust=adjust, **options) as known:
        await known.hold("prefill-1", IDS)
        for name in (MODEL, "zweitname", "alias"):
            headers = await known.ask(COMPLETIONS, {"prompt": IDS, "model": name})
            assert headers[PREDICTED] == "96", name


async def test_an_adapters_blocks_are_its_own() -> None:
    def adjust(_name: str, behaviour: KnowingVllm) -> None:
        behaviour.models = [model_card(MODEL), adapter("ada")]

    async with serve_known(2, 1, adjust=adjust, tokenizer=["none"]) as known:
        extra = [["ada"]] * (len(IDS) // 16)
        await known.hold("prefill-1", IDS, lora_id=1, lora_name="ada", extra_keys=extra)
        own = await known.ask(COMPLETIONS, {"prompt": IDS, "model": "ada"})
        assert (own[PREDICTED], own["x-transload-prefill"]) == ("96", "prefill-1")
        assert (await known.ask(COMPLETIONS, {"prompt": IDS}))[PREDICTED] == "0"


async def test_an_adapter_that_only_decode_has_is_served_there() -> None:
    def adjust(name: str, behaviour: KnowingVllm) -> None:
        if name.startswith("decode"):
            behaviour.models = [model_card(MODEL), adapter("ada")]

    async with serve_known(adjust=adjust, on_empty_prefill="fail") as known:
        headers = await known.ask(COMPLETIONS, {"prompt": IDS, "model": "ada"})
        assert headers["x-transload-path"] == "local"
        assert headers["x-transload-reason"] == "no_prefill"
        assert "x-transload-fallback" not in headers
        scrape = await known.fleet.router.metrics()
        assert scrape.nonzero("transload_fallbacks_total") == []


async def test_an_adapter_that_only_prefill_has_is_refused_by_name() -> None:
    def adjust(name: str, behaviour: KnowingVllm) -> None:
        if name.startswith("prefill"):
            behaviour.models = [model_card(MODEL), adapter("ada")]

    async with serve_known(adjust=adjust) as known:
        answer = await known.fleet.router.client.post(
            COMPLETIONS, json={"model": "ada", "prompt": IDS}
        )
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "no decode engine serves the model 'ada'"
        assert known.fleet.p.asked() == []


RANK = "x-data-parallel-rank"


async def test_ranks_are_destinations_and_each_leg_names_its_own() -> None:
    ranks = {"prefill-0": 2, "decode-0": 1}
    async with serve_known(ranks=ranks, tokenizer=["none"]) as known:
        for rank in (1, 0, 1):
            ids = [1000 + rank * 200 + number for number in range(100)]
            await known.hold("prefill-0", ids, rank=rank)
            headers = await known.ask(COMPLETIONS, {"prompt": ids}, **{RANK: "7"})
            assert headers[PREDICTED] == "96"
            assert RANK not in headers
            assert known.fleet.p.asked(Leg.PREFILL)[-1].request.header(RANK) == str(rank)
            assert known.fleet.d.asked(Leg.DECODE)[-1].request.header(RANK) is None


async def test_decodes_ranks_are_decodes() -> None:
    async with serve_known(ranks={"prefill-0": 1, "decode-0": 3}) as known:
        await known.ask(COMPLETIONS, {"prompt": IDS})
        assert known.fleet.p.asked(Leg.PREFILL)[0].request.header(RANK) is None
        assert known.fleet.d.asked(Leg.DECODE)[0].request.header(RANK) in ("0", "1", "2")


async def test_an_engine_that_lost_its_ranks_is_not_asked_for_one() -> None:
    """It came back without data parallelism, or without events: it refuses the header."""
    options: dict[str, Any] = {"health_interval_s": 0.05}
    async with serve_known(ranks={"prefill-0": 2}, **options) as known:
        known.fleet.p.by_path["/kv_event_sources"] = behaviours.answer(200, b"{}")
        await until(lambda: ("prefill-0", 1) not in known.router.streams, "not followed")
        for _ in range(4):
            await known.ask(COMPLETIONS, {"prompt": IDS})
        assert {one.request.header(RANK) for one in known.fleet.p.asked(Leg.PREFILL)} == {None}
