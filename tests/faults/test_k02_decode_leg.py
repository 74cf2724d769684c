"""K02: decode gets the client's bytes and the handoff; a missing one is never silent."""

import asyncio
from typing import Any

import pytest

from support import behaviours
from support.behaviours import Gate
from support.expect import assert_own_error
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Behaviour, Exchange, Leg
from support.vllm_api import APIS, CHAT, COMPLETIONS, Api, dump
from support.vllm_behaviour import VllmBehaviour

# What no re-serialisation survives: spellings, order, repeats of unknown members, escapes.
SPELLED = (
    b'  {"x_unknown" : [1.0e2,\n 1E400, -0.0, 0.10] , "seed":18446744073709551615,'
    b'"model": "tiny-model","prompt" :"\\u00fc\\/ \\ud83d\\ude9a \xf0\x9f\x9a\x9a",'
    b'"max_tokens": null, "logit_bias":{"12": -1e-0},"user":""}\r\n '
)


async def test_the_clients_bytes_and_the_handoff(fleet: Fleet) -> None:
    answer = await fleet.router.client.post(COMPLETIONS.path, content=SPELLED)
    assert answer.status_code == 200, answer.text
    request = fleet.d.asked(Leg.DECODE)[0].request
    [handoff] = fleet.p.ledger.issued
    end = SPELLED.rindex(b"}")
    assert request.body == SPELLED[:end] + b',"kv_transfer_params":' + handoff + SPELLED[end:]
    assert request.header("content-length") == str(len(request.body))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_the_handoff_stays_between_engines(fleet: Fleet, api: Api) -> None:
    """Engines that echo the parameters do not show them to clients."""

    async def echo(exchange: Exchange) -> None:
        body = b'{"id":"1","kv_transfer_params":{"remote_host":"10.0.0.1"},"n":1.50}'
        await exchange.answer(200, body)

    fleet.d.by_leg[Leg.DECODE] = echo
    answer = await fleet.router.client.post(api.path, json=api.request())
    assert answer.status_code == 200
    assert b"remote_host" not in answer.content
    assert answer.content.startswith(b'{"id":"1"')


def without_handoff(spelling: str) -> Behaviour:
    """A prefill answer whose handoff is null, {} or absent."""

    async def behaviour(exchange: Exchange) -> None:
        member = {"null": b',"kv_transfer_params":null', "{}": b',"kv_transfer_params":{}'}
        await exchange.answer(200, b'{"id":"x"' + member.get(spelling, b"") + b"}")

    return behaviour


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("spelling", ["null", "absent", "{}"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_missing_recomputes_and_says_so(
    fleet: Fleet, api: Api, spelling: str, stream: bool
) -> None:
    fleet.p.by_leg[Leg.PREFILL] = without_handoff(spelling)
    answer = await fleet.router.client.post(api.path, json=api.request(stream=stream))
    assert answer.status_code == 200
    assert answer.headers["x-transload-handoff"] == "missing"
    assert fleet.d.asked(Leg.LOCAL)[0].request.json() == api.request(stream=stream)
    assert answer.content == bytes(fleet.d.asked()[0].sent)
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_handoffs_total", outcome="missing") == 1
    assert scrape.value("transload_fallbacks_total", reason="missing_handoff") == 1


@pytest.mark.parametrize("value", [b'"x"', b"[]", b"[1]", b"0", b"1.5", b"true", b"false", b" { }"])
async def test_what_is_no_filled_object_is_no_handoff(fleet: Fleet, value: bytes) -> None:
    """Decode never sees it, and the answer says what is missing."""
    fleet.p.by_leg[Leg.PREFILL] = behaviours.answer(200, b'{"kv_transfer_params":' + value + b"}")
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert answer.status_code == 200
    assert answer.headers["x-transload-handoff"] == "missing"
    [decode] = fleet.d.asked()
    assert decode.request.json() == CHAT.request()
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_handoffs_total", outcome="missing") == 1
    assert scrape.value("transload_handoffs_total", outcome="issued") == 0


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_missing_fails_where_the_operator_says_so(api: Api) -> None:
    async with serve_fleet(on_missing_handoff="fail") as fleet:
        assert isinstance(fleet.p.default, VllmBehaviour)
        fleet.p.default.has_connector = False
        answer = await fleet.router.client.post(api.path, json=api.request())
        assert answer.status_code == 502
        assert_own_error(api, 502, answer.content)
        assert fleet.d.asked() == []
        scrape = await fleet.router.metrics()
        assert scrape.value("transload_handoffs_total", outcome="missing") == 1


@pytest.mark.parametrize(
    "handoff",
    [
        b'{"remote_block_ids":[1,2],"a":1,"b":9223372036854775807,"c":1.50,"d":[[],[[]]]}',
        b'{ "push" : "token" , "\\u00e4" : "\\ud83d\\ude9a" }',
        b'{"big":"' + b"x" * 300_000 + b'"}',
    ],
    ids=["numbers", "escapes", "300kB"],
)
async def test_the_handoff_is_opaque(fleet: Fleet, handoff: bytes) -> None:
    fleet.p.ledger.issued.append(handoff)
    fleet.p.by_leg[Leg.PREFILL] = behaviours.answer(
        200, b'{"id":"x","kv_transfer_params": ' + handoff + b' ,"usage":null}'
    )
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert answer.status_code == 200
    assert fleet.d.asked(Leg.DECODE)[0].request.handoff == handoff


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"not json", b'{"kv_transfer_params":', b"null"], ids=repr
)
async def test_a_prefill_answer_that_is_no_object(fleet: Fleet, answer: bytes) -> None:
    fleet.p.by_leg[Leg.PREFILL] = behaviours.answer(200, answer)
    told = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert told.status_code == 502
    assert assert_own_error(CHAT, 502, told.content) == "engine_bad_answer"


async def test_prefill_is_read_to_its_end_before_decode_starts(fleet: Fleet) -> None:
    gate = Gate()
    fleet.p.by_leg[Leg.PREFILL] = gate.before()
    asking = asyncio.create_task(fleet.router.client.post(CHAT.path, json=CHAT.request()))
    await gate.reached.wait()
    # A whole other request goes through meanwhile, so decode had every chance.
    assert (await fleet.router.client.get("/healthz")).status_code == 200
    assert fleet.d.asked() == []
    gate.opened.set()
    assert (await asking).status_code == 200


async def test_explained_paths(fleet: Fleet) -> None:
    told = await fleet.router.client.post(
        CHAT.path, json=CHAT.request(), headers={"x-transload-explain": "1"}
    )
    names = ("path", "prefill", "decode")
    assert [told.headers[f"x-transload-{name}"] for name in names] == [
        "disaggregated",
        "prefill-0",
        "decode-0",
    ]
    silent = await fleet.router.client.post(CHAT.path, json=CHAT.request())
    assert not [name for name in silent.headers if name.startswith("x-transload")]
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_paths_total", endpoint="chat", path="disaggregated") == 2
    assert scrape.value("transload_handoffs_total", outcome="issued") == 2


async def test_readyz_names_what_does_not_hand_off() -> None:
    async with serve_fleet() as fleet:
        assert isinstance(fleet.p.default, VllmBehaviour)
        fleet.p.default.has_connector = False
        await fleet.router.client.post(CHAT.path, json=CHAT.request())
        report: Any = (await fleet.router.client.get("/readyz")).json()
        assert [pair["verdict"] for pair in report["handoffs"]] == ["missing"]


async def test_repeated_members_mean_what_engines_take_them_for(fleet: Fleet) -> None:
    """The last one counts; a first `stream` cannot make prefill stream."""
    body = dump(COMPLETIONS.request())[:-1] + b',"stream":true,"stream":false,"max_tokens":9}'
    answer = await fleet.router.client.post(COMPLETIONS.path, content=body)
    assert answer.status_code == 200
    leg = fleet.p.asked(Leg.PREFILL)[0].request
    assert (leg.json()["max_tokens"], leg.json().get("stream")) == (1, False)
