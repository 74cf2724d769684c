"""K06: bytes as they came, at once, and a stream that breaks off says so in its API's words."""

import asyncio
import json

import pytest

from support import behaviours
from support.expect import assert_cut_stream, split_stream
from support.raw_client import post, raw_client
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Behaviour, Exchange, Leg
from support.vllm_api import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api, dump
from support.vllm_behaviour import SSE, VllmBehaviour

EACH_API = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
STYLES = {
    "lf": b'data: {"a":"\xe6\xbc\xa2"}\n\ndata:{"b":1}\n\n: ping\n\nevent: x\ndata: 1\ndata: 2\n\n',
    "crlf": b'data: {"a":"\xe6\xbc\xa2"}\r\n\r\ndata:{"b":1}\r\n\r\n: ping\r\n\r\nid: 7\r\n\r\n',
    "cr": b'data: {"a":"\xf0\x9f\x9a\x9a"}\r\rdata:{"b":1}\r\r: ping\r\rretry: 5\r\r',
    "mixed": b"data: 1\r\n\ndata: 2\n\r\ndata: 3\r\r\ndata: 4\n\n\n\ndata: [DONE]\n\n",
    "no-end": b"data: 1\n\ndata: never ended",
    "no-end-cr": b"data: 1\r\n\r\ndata: 2\r",
    "not-sse": b"\x00\x01\x02plain bytes\xff\xfe",
}


@pytest.mark.parametrize("style", STYLES)
async def test_cut_at_every_byte(fleet: Fleet, style: str) -> None:
    """Two network packets, the seam anywhere: the client's bytes are the engine's."""
    whole = STYLES[style]
    for cut in range(1, len(whole)):
        fleet.d.script.append(behaviours.stream([whole[:cut], whole[cut:]]))
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
        assert answer.content == whole, cut


@pytest.mark.parametrize("style", STYLES)
async def test_byte_by_byte(fleet: Fleet, style: str) -> None:
    whole = STYLES[style]
    fleet.d.script.append(behaviours.stream([whole[i : i + 1] for i in range(len(whole))]))
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert answer.content == whole


@EACH_API
async def test_identical_bytes_and_header(fleet: Fleet, api: Api) -> None:
    answer = await fleet.router.client.post(api.path, json=api.request(stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-encoding" not in answer.headers
    assert answer.content == bytes(fleet.d.asked()[0].sent)
    assert api.done in answer.content


@EACH_API
async def test_each_event_arrives_before_the_next_is_sent(fleet: Fleet, api: Api) -> None:
    num_events = 6
    # One gate more than is opened in turn: what follows the last must not join it.
    gates = {number: asyncio.Event() for number in range(num_events + 1)}
    fleet.d.by_leg[Leg.DECODE] = behaviours.gated_stream(gates)
    async with raw_client(fleet.router.port) as client:
        await client.send(post(api.path, dump(api.request(stream=True))))
        gates[0].set()
        status, _ = await client.read_head()
        assert status == 200, "the status waits for the first event, and for no more"
        exchange = await fleet.d.next_exchange()
        seen = 0
        for number in range(num_events):
            gates[number].set()
            chunk = await client.read_chunk()
            assert chunk == bytes(exchange.sent[seen:]), "one event, one write"
            seen += len(chunk)
        gates[num_events].set()
        while await client.read_chunk():
            pass


@pytest.mark.parametrize("how", ["reset", "close"])
@EACH_API
async def test_cut_behind_each_event(fleet: Fleet, api: Api, how: behaviours.Death) -> None:
    for after in range(8):
        fleet.d.exchanges.clear()
        fleet.d.script.append(behaviours.die_in_body(after, how))
        answer = await fleet.router.client.post(api.path, json=api.request(stream=True))
        if after == 0:
            assert answer.status_code == 502, "no event, no stream: an error like any other"
            continue
        assert answer.status_code == 200
        sent = bytes(fleet.d.asked()[0].sent)
        if api.done in sent:
            # The last event was there, only the transfer's own end was missing.
            assert answer.content.startswith(sent)
        else:
            assert_cut_stream(api, answer.content, sent)


@pytest.mark.parametrize("how", ["reset", "close"])
@EACH_API
async def test_a_stream_that_died_behind_its_header_is_mended(
    api: Api, how: behaviours.Death
) -> None:
    """No event came, so the client saw nothing: another engine answers."""
    async with serve_fleet(1, 2) as fleet:
        died: list[Exchange] = []

        async def once(exchange: Exchange) -> None:
            play = exchange.engine.default if died else behaviours.die_in_body(0, how)
            died.append(exchange)
            await play(exchange)

        for engine in fleet.decode:
            engine.by_leg[Leg.DECODE] = once
        answer = await fleet.router.client.post(api.path, json=api.request(stream=True))
        assert answer.status_code == 200
        [first, second] = died
        assert first.engine is not second.engine
        assert answer.content == bytes(second.sent)
        assert api.done in answer.content
        scrape = await fleet.router.metrics()
        assert scrape.value("transload_errors_total", leg="decode", kind="engine_reset") == 1


@pytest.mark.parametrize("cut", [1, 5, 6, 7, 20, -1])
@EACH_API
async def test_cut_inside_an_event(fleet: Fleet, api: Api, cut: int) -> None:
    """Half an event would swallow the error event behind it."""
    fleet.d.by_leg[Leg.DECODE] = behaviours.die_in_body(3, "reset", cut)
    answer = await fleet.router.client.post(api.path, json=api.request(stream=True))
    sent = bytes(fleet.d.asked()[0].sent)
    whole = sent[: sent.rindex(b"\n\n") + 2]
    assert_cut_stream(api, answer.content, whole)
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_errors_total", leg="decode", kind="engine_reset") == 1


@EACH_API
async def test_silence_inside_a_stream(fleet: Fleet, api: Api) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.stall_in_body(3)
    answer = await fleet.router.client.post(api.path, json=api.request(stream=True))
    assert_cut_stream(api, answer.content, bytes(fleet.d.asked()[0].sent))


async def test_a_cut_stream_ends_its_transfer_cleanly(fleet: Fleet) -> None:
    """The client's connection goes on: the error is in the stream, not in the transport."""
    fleet.d.by_leg[Leg.DECODE] = behaviours.die_in_body(2)
    async with raw_client(fleet.router.port) as client:
        for _ in range(2):
            await client.send(post(CHAT.path, dump(CHAT.request(stream=True))))
            answer = await client.read_answer()
            assert b'"error"' in answer.body


async def test_no_total_cap_on_streams(fleet: Fleet) -> None:
    """Longer than every timeout, never silent."""

    async def patient(exchange: Exchange) -> None:
        await exchange.head(200, [SSE, ("transfer-encoding", "chunked")])
        for number in range(8):
            await asyncio.sleep(0.15)
            await exchange.chunk(b"data: %d\n\n" % number)
        await exchange.end_chunks()

    fleet.d.by_leg[Leg.DECODE] = patient
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert len(split_stream(answer.content)) == 8


async def test_a_stream_that_the_engine_ends_without_done(fleet: Fleet) -> None:
    """The engine ended it well; nothing is added."""
    fleet.d.by_leg[Leg.DECODE] = behaviours.stream([b"data: {}\n\n"])
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert answer.content == b"data: {}\n\n"


async def test_an_engines_own_error_event_passes(fleet: Fleet) -> None:
    event = b'data: {"error":{"message":"load failed","type":"X","code":500}}\n\ndata: [DONE]\n\n'
    fleet.d.by_leg[Leg.DECODE] = behaviours.stream([event])
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert answer.content == event


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.name)
async def test_usage_is_never_forced_into_a_stream(fleet: Fleet, api: Api) -> None:
    answer = await fleet.router.client.post(api.path, json=api.request(stream=True))
    assert b'"usage"' not in answer.content
    options = {"include_usage": True}
    body = api.request(stream=True, stream_options=options)
    answer = await fleet.router.client.post(api.path, json=body)
    assert b'"usage"' in answer.content
    assert "stream_options" not in fleet.p.asked()[-1].request.json()
    assert fleet.d.asked()[-1].request.json()["stream_options"] == options


@pytest.mark.parametrize("status", [400, 500])
async def test_a_streams_refusal_is_a_status_not_an_event(fleet: Fleet, status: int) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.refuse(status)
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"


async def test_a_stream_asked_for_and_a_whole_answer_given(fleet: Fleet) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.answer(200, b'{"id" : 1}')
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert (answer.headers["content-type"], answer.content) == ("application/json", b'{"id" : 1}')


async def test_an_endless_event_is_not_held_for_ever(fleet: Fleet) -> None:
    big = b"data: " + b"x" * (3 << 20)
    fleet.d.by_leg[Leg.DECODE] = behaviours.stream([big, b"\n\n", b"data: 1\n\n"])
    answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    assert answer.content == big + b"\n\ndata: 1\n\n"


async def test_many_events_in_one_packet_and_one_over_many(fleet: Fleet) -> None:
    events = b"".join(b"data: %d\n\n" % n for n in range(5000))
    for size in (1000, 4096, 16384, 65536):
        parts = [events[i : i + size] for i in range(0, len(events), size)]
        fleet.d.script.append(behaviours.stream(parts))
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
        assert answer.content == events


def last_number(number: int) -> Behaviour:
    data = json.dumps({"type": "x", "sequence_number": number}).encode()
    piece = b"event: x\ndata: " + data + b"\n\n"

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, [SSE, ("transfer-encoding", "chunked")])
        await exchange.chunk(b'event: a\ndata: {"sequence_number":0}\n\n' + piece)
        exchange.reset()

    return behaviour


async def test_the_error_event_counts_on(fleet: Fleet) -> None:
    for number in (1, 41, 2**40):
        fleet.d.script.append(last_number(number))
        answer = await fleet.router.client.post(RESPONSES.path, json=RESPONSES.request(stream=True))
        assert split_stream(answer.content)[-1][1]["sequence_number"] == number + 1


async def test_messages_errors_have_anthropics_words(fleet: Fleet) -> None:
    fleet.d.by_leg[Leg.DECODE] = behaviours.die_in_body(2)
    answer = await fleet.router.client.post(MESSAGES.path, json=MESSAGES.request(stream=True))
    _, data = split_stream(answer.content)[-1]
    assert data["error"]["type"] in ("api_error", "overloaded_error", "timeout_error")


@pytest.mark.parametrize("tells", [True, False], ids=["0.32", "0.28"])
async def test_patched_streams_keep_all_other_bytes(fleet: Fleet, tells: bool) -> None:
    """K09 on a stream cut at every byte: only the count may differ."""
    assert isinstance(fleet.p.default, VllmBehaviour)
    fleet.p.default.tells_cached = tells
    fleet.p.default.cached_tokens = 3
    usage = b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":%d},"x":1.50}}'
    whole = 'data: {"t":"漢🚚"}\r\n\r\n'.encode() + b"data: " + usage % 7 + b"\r\n\r\n"
    for cut in range(1, len(whole), 3):
        fleet.d.script.append(behaviours.stream([whole[:cut], whole[cut:]]))
        answer = await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
        assert answer.content == (whole if tells else whole.replace(b":7},", b":3},")), cut


@EACH_API
async def test_proxies_on_the_way_are_told_not_to_gather(fleet: Fleet, api: Api) -> None:
    stream = await fleet.router.client.post(api.path, json=api.request(stream=True))
    assert stream.headers["x-accel-buffering"] == "no"
    whole = await fleet.router.client.post(api.path, json=api.request())
    assert "x-accel-buffering" not in whole.headers
