"""K17 in the service: an index that outlives its replica, or ends with its engines."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from support import behaviours
from support.knowing_engine import EXPLAIN, KnownFleet, serve_known, stored
from support.ledger import Ledger
from support.raw_client import raw_client
from support.router_server import QUICK, RunningRouter, serve_router
from support.scripted_engine import Behaviour, Exchange, ScriptedEngine, running
from support.vllm_api import MODEL
from support.vllm_behaviour import VllmBehaviour
from support.waiting import until
from support.zmq_publisher import CLEARED
from transload_router.app.snapshot import SNAPSHOT_PATH
from transload_router.core.kv_events.messages import StreamState
from transload_router.settings import Settings

COMPLETIONS = "/v1/completions"
PREDICTED = "x-transload-predicted-cached-tokens"
IDS = list(range(100, 200))
KEY = "s3cret"
BASE: dict[str, Any] = {**QUICK, "policy": "prefix", "tokenizer": ["none"]}


@contextlib.asynccontextmanager
async def replica(known: KnownFleet, source: str, **more: Any) -> AsyncIterator[RunningRouter]:
    """Another router in front of the same engines, started from a snapshot."""
    urls = {
        "prefill": [engine.url for engine in known.fleet.prefill],
        "decode": [engine.url for engine in known.fleet.decode],
    }
    values = {**BASE, "response_header_timeout_s": 20.0, **urls, **more}
    settings = Settings(index_snapshot_from=source, **values)
    async with serve_router(settings) as router:
        yield router


async def first_answer(router: RunningRouter) -> Any:
    answer = await router.client.post(
        COMPLETIONS, json={"model": MODEL, "prompt": IDS}, headers=EXPLAIN
    )
    assert answer.status_code == 200, answer.text
    return answer.headers


async def test_a_new_replica_starts_with_what_the_old_one_knows() -> None:
    async with serve_known(3, 1, tokenizer=["none"], admin_api_key=KEY) as known:
        await known.hold("prefill-2", IDS)
        await known.hold("prefill-2", [9000 + number for number in range(16)])
        # What replays no longer give: only the snapshot can tell of it.
        known.publishers["prefill-2", 0].buffer.popleft()
        source = known.fleet.router.url
        async with replica(known, source, admin_api_key=KEY) as router:
            tables = router.app.state.router
            await until(
                lambda: tables.streams.get(("prefill-2", 0)) is StreamState.EXACT, "followed"
            )
            headers = await first_answer(router)
            assert (headers["x-transload-prefill"], headers[PREDICTED]) == ("prefill-2", "96")
            scrape = await router.metrics()
            assert scrape.value("transload_index_snapshots_total", outcome="loaded") == 1
            # It goes on from there.
            await known.publish("prefill-2", CLEARED)
            await until(lambda: tables.index.stats(("prefill-2", 0)).num_cleared == 1, "heard")


async def assert_cold(router: RunningRouter) -> None:
    scrape = await router.metrics()
    assert scrape.value("transload_index_snapshots_total", outcome="failed") == 1
    assert scrape.value("transload_index_snapshots_total", outcome="loaded") == 0
    assert (await router.client.get("/healthz")).status_code == 200
    assert (await first_answer(router))[PREDICTED] == "0"


async def test_a_replica_that_wants_another_key_gives_nothing() -> None:
    async with (
        serve_known(tokenizer=["none"], admin_api_key="another") as known,
        replica(known, known.fleet.router.url, admin_api_key=KEY) as router,
    ):
        await assert_cold(router)


async def test_other_engines_under_the_same_names_are_refused() -> None:
    """Blocks would be looked for where they never were."""
    async with serve_known(2, 1, tokenizer=["none"]) as known:
        await known.hold("prefill-1", IDS)
        await known.hold("prefill-1", [9000 + number for number in range(16)])
        for publisher in known.publishers.values():
            publisher.buffer.clear()
        turned = {"prefill": [engine.url for engine in reversed(known.fleet.prefill)]}
        async with replica(known, known.fleet.router.url, **turned) as router:
            await assert_cold(router)


async def slow(exchange: Exchange) -> None:
    """A byte now and then, for ever."""
    await exchange.head(200, [("transfer-encoding", "chunked")])
    while not exchange.is_gone:
        await exchange.chunk(b"x")
        await asyncio.sleep(0.01)


def packed(index: bytes) -> bytes:
    return msgspec.msgpack.encode({"engines": {}, "index": index})


BAD: dict[str, Behaviour] = {
    "refused": behaviours.answer(403, b"{}"),
    "missing": behaviours.answer(404, b"{}"),
    "redirect": behaviours.answer(307, b"", [("location", "http://127.0.0.1:9/")]),
    "empty": behaviours.answer(200, b""),
    "text": behaviours.answer(200, b"<html>not a snapshot</html>"),
    "other": behaviours.answer(200, msgspec.msgpack.encode([1, 2, 3])),
    "no index": behaviours.answer(200, packed(b"")),
    "garbage": behaviours.answer(200, packed(b"\x93\x01\x02\x03" * 50)),
    "too much": behaviours.answer(200, b"x" * 300_000),
    "cut": behaviours.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nxx", then="close"),
    "slow": slow,
    "silent": behaviours.hang,
    "nobody": behaviours.reset_before_header,
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_a_bad_snapshot_is_a_cold_start(
    answer: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transload_router.app.snapshot._TIMEOUT_S", 0.3)
    async with (
        running(ScriptedEngine("old", Ledger(), VllmBehaviour())) as old,
        serve_known(tokenizer=["none"]) as known,
    ):
        old.by_path[SNAPSHOT_PATH] = answer
        async with replica(known, old.url, index_max_blocks=1000) as router:
            await assert_cold(router)


async def test_what_a_snapshot_says_of_engines_that_do_not_come_is_dropped() -> None:
    async with serve_known(2, 1, tokenizer=["none"]) as known:
        await known.hold("prefill-1", IDS)
        await known.fleet.prefill[1].stop()
        async with replica(known, known.fleet.router.url) as router:
            index = router.app.state.router.index
            await until(lambda: index._saved == {}, "dropped")
            assert ("prefill-1", 0) not in index.owners()
        await known.fleet.prefill[1].start()


@pytest.mark.parametrize(
    "path",
    [
        *("/admin", "/admin/", "/admin/index", "/admin/other", "/admin/v1/chat/completions"),
        *("//admin/index", "/admin//index", "/%61dmin/index", "/admin%2findex", "///admin"),
        *("/v1/../admin/index", "/./admin/index"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_no_spelling_of_admin_reaches_an_engine(
    path: str, method: str, admin_fleet: KnownFleet
) -> None:
    before = [len(engine.exchanges) for engine in admin_fleet.fleet.engines]
    async with raw_client(admin_fleet.fleet.router.port) as client:
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nvia: 1.1 x\r\ncontent-length: 0\r\n\r\n"
        await client.send(head.encode())
        answer = await client.read_answer()
    assert answer.status in (307, 400, 403, 404, 405)
    assert [len(engine.exchanges) for engine in admin_fleet.fleet.engines] == before


@pytest.fixture
async def admin_fleet() -> AsyncIterator[KnownFleet]:
    async with serve_known() as known:
        yield known


async def test_caches_are_reset_where_engines_agree() -> None:
    async with serve_known(2, 2, tokenizer=["none"]) as known:
        for engine_id in ("prefill-0", "prefill-1", "decode-0"):
            await known.hold(engine_id, IDS)
        p0, p1 = known.fleet.prefill
        d0, d1 = known.fleet.decode
        p0.by_path["/reset_prefix_cache"] = behaviours.answer(200, b'{"success":true}')
        p1.by_path["/reset_prefix_cache"] = behaviours.answer(200, b'{"success":false}')
        d0.by_path["/reset_prefix_cache"] = behaviours.answer(200, b"")
        d1.by_path["/reset_prefix_cache"] = behaviours.close_before_header
        answer = await known.fleet.router.client.post("/admin/reset_prefix_cache")
        assert answer.json() == {
            "prefill-0": True,
            "prefill-1": False,
            "decode-0": True,
            "decode-1": False,
        }
        stats = {key: known.router.index.stats(key).num_blocks for key in known.publishers}
        assert {key[0] for key, blocks in stats.items() if sum(blocks.values())} == {"prefill-1"}
        headers = await known.ask(COMPLETIONS, {"prompt": IDS})
        assert (headers["x-transload-prefill"], headers[PREDICTED]) == ("prefill-1", "96")
        # The engine says so itself with its next step; that changes nothing then.
        await known.publish("prefill-0", CLEARED, stored(IDS)[0])


async def test_a_reset_is_not_a_clients() -> None:
    async with serve_known() as known:
        client = known.fleet.router.client
        for path in ("/reset_prefix_cache", "//reset_prefix_cache", "/kv_event_sources"):
            answer = await client.post(f"{known.fleet.router.url}{path}")
            assert answer.status_code == 403
        answer = await client.post(
            "/admin/reset_prefix_cache", headers={"origin": "http://evil.example"}
        )
        assert answer.status_code == 403
        assert all(
            one.request.path != "/reset_prefix_cache"
            for engine in known.fleet.engines
            for one in engine.exchanges
        )


async def test_ever_new_prompts_and_engines_cost_bounded_memory() -> None:
    """Texts, expectations, blocks and tables have a bound or go with what they belong to."""
    options: dict[str, Any] = {"index_max_blocks": 1000, "policy": "cost", "tokenizer": ["none"]}
    async with serve_known(2, 2, **options) as known:
        router = known.router
        for number in range(40):
            ids = [20_000 * (number + 1) + each for each in range(960)]
            await known.hold("prefill-0", ids)
            await known.ask(COMPLETIONS, {"prompt": ids, "max_tokens": 1})
            assert router.index.num_blocks <= 1000
        router.index.expire(1e18)
        assert router.index.num_predictions == 0
        assert set(router.streams) == set(known.publishers)
        assert len(dict(router.load.items())) == 4
