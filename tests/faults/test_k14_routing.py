"""K14 and K17 in the service: whose events are followed, from when to when, and what is left."""

import logging
from typing import Any

import pytest

from support import behaviours
from support.knowing_engine import EXPLAIN, KnowingVllm, KnownFleet, serve_known, stored
from support.scripted_engine import Behaviour
from support.vllm_api import MODEL, dump
from support.waiting import until
from support.zmq_publisher import ZmqPublisher, batch, removed
from transload_router.core.kv_events.messages import StreamState

COMPLETIONS, SOURCES = "/v1/completions", "/kv_event_sources"
PREDICTED = "x-transload-predicted-cached-tokens"
IDS = list(range(100, 200))
KEY = ("prefill-0", 0)
SOON: dict[str, Any] = {"health_interval_s": 0.05, "tokenizer": ["none"]}


async def predicted(known: KnownFleet, ids: list[int] = IDS) -> int:
    return int((await known.ask(COMPLETIONS, {"prompt": ids}))[PREDICTED])


def num_asked(known: KnownFleet) -> int:
    return [one.request.path for one in known.fleet.p.exchanges].count(SOURCES)


async def rounds(known: KnownFleet, count: int = 2) -> None:
    """So many more probes of the prefill engine, each to its end."""
    exchanges = known.fleet.p.exchanges

    def num_health() -> int:
        return [one.request.path for one in exchanges].count("/health")

    wanted = num_health() + count + 1
    await until(lambda: num_health() >= wanted, "probed again")


async def test_engines_are_asked_where_they_publish() -> None:
    async with serve_known(**SOON) as known:
        await rounds(known)
        assert num_asked(known) > 1


async def test_off_follows_nobody_and_asks_nobody() -> None:
    async with serve_known(kv_events="off", **SOON) as known:
        await rounds(known)
        assert num_asked(known) == 0
        assert known.router.streams == {}
        assert known.router.index.owners() == []


async def test_configured_endpoints_are_followed_and_not_asked_for() -> None:
    publisher = ZmqPublisher()
    place = f"prefill-0={publisher.endpoint};{publisher.replay_endpoint}"
    try:
        async with serve_known(ranks={"prefill-0": 0}, kv_event_endpoint=[place], **SOON) as known:
            await known.followed(KEY)
            await publisher.publish(batch(1.0, stored(IDS)[0]))
            await until(lambda: known.router.index.num_blocks > 0, "followed")
            assert await predicted(known) == 96
            await rounds(known)
            assert num_asked(known) == 0
    finally:
        await publisher.close()


async def test_other_ports_are_another_process() -> None:
    """What the old one held is forgotten, what it says later is not heard."""
    async with serve_known(**SOON) as known:
        await known.hold("prefill-0", IDS)
        assert await predicted(known) == 96
        old, new = known.publishers[KEY], ZmqPublisher()
        try:
            known.behaviour("prefill-0").publishers[0] = known.publishers[KEY] = new
            await until(lambda: known.router.index.num_blocks == 0, "forgotten")
            await known.followed(KEY)
            other = [5000 + number for number in range(100)]
            await old.publish(batch(2.0, stored(other)[0]))
            await known.hold("prefill-0", IDS[:64])
            assert await predicted(known, other) == 0
            assert await predicted(known) == 64
        finally:
            known.publishers[KEY] = old
            await new.close()


async def test_the_same_ports_may_be_another_process() -> None:
    """Its numbers begin again."""
    async with serve_known(**SOON) as known:
        for start in (0, 100, 200):
            await known.hold("prefill-0", [start + number for number in range(100)])
        old = known.publishers[KEY]
        ports = old.ports
        await old.close()
        new = known.publishers[KEY] = ZmqPublisher(*ports)
        known.behaviour("prefill-0").publishers[0] = new
        index, other = known.router.index, stored([9000 + number for number in range(16)])[0]
        # Connections are renewed in their own time; what is published before is not heard.
        while index.stats(KEY).num_cleared == 0:
            await new.publish(batch(3.0, other))
            await rounds(known, 1)
        assert await predicted(known, [100 + number for number in range(100)]) == 0


async def test_an_engine_that_stops_publishing_is_followed_no_longer() -> None:
    async with serve_known(**SOON) as known:
        await known.hold("prefill-0", IDS)
        known.fleet.p.by_path[SOURCES] = behaviours.answer(404, b"{}")
        await until(lambda: KEY not in known.router.streams, "not followed")
        assert known.router.index.owners() == [("decode-0", 0)]
        assert known.router.index.num_late_events == 0
        scrape = await known.fleet.router.metrics()
        assert scrape.samples("transload_kv_stream_state") == [
            ({"engine": "decode-0", "rank": "0", "state": "exact"}, 1.0)
        ]


NONSENSE: dict[str, Behaviour] = {
    "error": behaviours.answer(503, b"busy"),
    "text": behaviours.answer(200, b"<html>"),
    "list": behaviours.answer(200, b"[]"),
    "rank": behaviours.answer(200, b'{"x":{"endpoint":"tcp://a:1"}}'),
    "endpoint": behaviours.answer(200, b'{"0":{"endpoint":"udp://a:1"}}'),
    "port": behaviours.answer(200, b'{"0":{"endpoint":"tcp://a:99999"}}'),
    "ranks": behaviours.answer(200, dump({"99999": {"endpoint": "tcp://a:1"}})),
    "reset": behaviours.reset_before_header,
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_changes_nothing(
    answer: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    """What is followed is followed on; it is said once, and nothing dies of it."""
    async with serve_known(**SOON) as known:
        await known.hold("prefill-0", IDS)
        known.fleet.p.by_path[SOURCES] = answer
        await rounds(known, 3)
        assert known.router.streams[KEY] is StreamState.EXACT
        assert await predicted(known) == 96
        assert (await known.fleet.router.client.get("/healthz")).status_code == 200
    said = [one for one in caplog.records if "is not known well" in one.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_from_the_start_does_not_keep_requests_away(answer: Behaviour) -> None:
    def adjust(_name: str, behaviour: KnowingVllm) -> None:
        behaviour.publishers = {}

    async with serve_known(ranks={"prefill-0": 0, "decode-0": 0}, **SOON) as known:
        for engine in known.fleet.engines:
            engine.by_path[SOURCES] = answer
        await rounds(known)
        assert await predicted(known) == 0
        assert (await known.fleet.router.client.get("/readyz")).status_code == 200


async def test_endpoints_that_lead_nowhere_are_cold_not_trusted() -> None:
    """An engine told to connect instead of bind: nobody answers there."""
    nowhere = {"0": {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:9"}}

    async with serve_known(ranks={"prefill-0": 0, "decode-0": 0}, **SOON) as known:
        known.fleet.p.by_path[SOURCES] = behaviours.answer(200, dump(nowhere))
        await until(lambda: known.router.index.owners() == [KEY], "subscribed")
        text = {"prompt": "the mill by the bridge " * 40}
        assert int((await known.ask(COMPLETIONS, text))[PREDICTED]) == 0
        assert not known.router.is_followed(KEY)
        assert int((await known.ask(COMPLETIONS, text))[PREDICTED]) > 0


async def test_a_second_copy_outlives_the_first() -> None:
    async with serve_known(**SOON) as known:
        event, names = stored(IDS)
        await known.publish("prefill-0", event, event)
        await known.publish("prefill-0", removed(*names))
        assert await predicted(known) == 96
        await known.publish("prefill-0", removed(*names))
        known.router.index.expire(1e18)
        assert await predicted(known) == 0


async def test_cleared_is_of_one_engine() -> None:
    async with serve_known(2, 1, **SOON) as known:
        for engine_id in ("prefill-0", "prefill-1"):
            await known.hold(engine_id, IDS)
        await known.clear("prefill-0")
        headers = await known.ask(COMPLETIONS, {"prompt": IDS})
        assert (headers["x-transload-prefill"], headers[PREDICTED]) == ("prefill-1", "96")


async def test_expectations_end_with_time_though_nobody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transload_router.app.choosing.EXPECT_BEYOND_S", 0.0)
    async with serve_known(**SOON) as known:
        assert await predicted(known) == 0
        await until(lambda: known.router.index.num_predictions == 0, "over")
        assert await predicted(known) == 0


async def test_what_is_known_by_text_goes_with_an_engine_that_was_down() -> None:
    text = {"prompt": "the mill by the bridge " * 40}
    async with serve_known(ranks={"prefill-0": 0, "decode-0": 0}, **SOON) as known:
        await known.ask(COMPLETIONS, text)
        assert int((await known.ask(COMPLETIONS, text))[PREDICTED]) > 0
        await known.fleet.p.stop()
        members = known.router.fleet.members
        await until(lambda: members["prefill-0"].health.value == "down", "down")
        await known.fleet.p.start()
        await until(lambda: members["prefill-0"].health.value == "up", "up")
        assert int((await known.ask(COMPLETIONS, text))[PREDICTED]) == 0


async def test_reported_hits_are_learned_and_compared(caplog: pytest.LogCaptureFixture) -> None:
    """The engine will not announce again what it already has."""
    caplog.set_level(logging.INFO)
    async with serve_known(**SOON) as known:
        known.behaviour("prefill-0").cached_tokens = 64
        assert await predicted(known) == 0
        known.router.index.expire(1e18)
        headers = await known.ask(COMPLETIONS, {"prompt": IDS})
        assert headers["x-transload-cached-tokens"] == "64"
        scrape = await known.fleet.router.metrics()
        name = "transload_cached_tokens_total"
        assert scrape.value(name, said="reported") == 128
        assert scrape.value("transload_cache_predictions_total", basis="events") == 2
        assert scrape.value("transload_cached_tokens_error_total") > 0


async def test_an_engines_own_explanations_are_not_the_routers() -> None:
    async with serve_known(**SOON) as known:
        known.fleet.d.always = behaviours.answer(
            200, b"{}", [("content-type", "application/json"), (PREDICTED, "77")]
        )
        answer = await known.fleet.router.client.post(
            COMPLETIONS, json={"model": MODEL, "prompt": IDS}
        )
        assert PREDICTED not in answer.headers
        told = await known.fleet.router.client.post(
            COMPLETIONS, json={"model": MODEL, "prompt": IDS}, headers=EXPLAIN
        )
        assert told.headers[PREDICTED] != "77"
