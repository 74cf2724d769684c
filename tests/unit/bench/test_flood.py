"""The flood's pieces: batches that keep caches full, requests at random times, the ratio."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import flood
import mock_engine
import openload
from mock_engine import Engine
from publish import BLOCKS_PER_BATCH, Ring
from transload_router.core.index.index import Index
from transload_router.core.kv_events.decode import decode_batch

KEY = ("e", 0)


def test_a_ring_keeps_a_cache_full() -> None:
    ring, index = Ring(1, num_batches=8), Index()
    index.add_owner(KEY, "m", 0)
    for payload in ring.filling:
        for event in decode_batch(payload).events:
            index.apply(KEY, 0, event)
    full = 4 * BLOCKS_PER_BATCH
    for _ in range(3):
        for payload in ring.turning:
            for event in decode_batch(payload).events:
                index.apply(KEY, 0, event)
            assert index.num_blocks == full
    stats = index.stats(KEY)
    assert stats is not None
    assert (stats.num_stored, stats.num_removed) == (7 * full, 6 * full)
    assert (stats.num_unknown_removed, stats.num_orphaned, stats.num_refused) == (0, 0, 0)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    server = await mock_engine.start(Engine("d"), 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


async def test_requests_go_to_all_targets_and_are_checked(url: str) -> None:
    first, second = await openload.run([url, url], 500.0, 0.1, 1)
    assert (first.faults, second.faults) == ([], [])
    assert abs(len(first.latencies_s) - len(second.latencies_s)) <= 1
    assert 10 < len(first.latencies_s) < 200
    await asyncio.sleep(0)  # for the connections to close


def test_a_rate_is_held_against_the_windows_without_events() -> None:
    def window(rate: int, latency_s: float) -> flood.Window:
        return flood.Window(rate, [0.001] * 90 + [latency_s] * 10, [0.0005], 0.5, rate, rate, 1.0)

    quiet, busy = flood.summarise([window(0, 0.002), window(100, 0.003), window(100, 0.003)])
    assert (quiet.rate, quiet.p99_ratio, quiet.requests) == (0, 1.0, 100)
    assert (busy.rate, busy.p99_ratio, busy.requests) == (100, 1.5, 200)
    assert (busy.p50_ms, busy.p99_ms, busy.direct_p99_ms) == (1.0, 3.0, 0.5)
    assert busy.p99_ratio_low == busy.p99_ratio_high == 1.5
