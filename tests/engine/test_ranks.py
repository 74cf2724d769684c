"""Data-parallel ranks are destinations: each has a cache, and prefill alone is told its rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from engine.conversations import converse
from engine.routing_world import Fleet, assert_exact, small, wait_followed
from engine.world import EXPLAIN, SPLITTING, token_ids
from real_engine.launch import MODEL_NAME, Engines, Role
from real_engine.router import RouterProcess
from real_engine.tap import Tap

pytestmark = [pytest.mark.engine, pytest.mark.engine_full, pytest.mark.timeout(900)]

_RANK = re.compile(rb"(?im)^x-data-parallel-rank:(\S+)")


@pytest.fixture(scope="module")
def ranked(engines: Engines) -> Iterator[Fleet]:
    """One prefill engine of two ranks and one decode engine."""
    prefill = replace(small("ranked-prefill", Role.PREFILL), num_ranks=2)
    fleet = Fleet(engines, [prefill, small("ranked-decode", Role.DECODE)])
    fleet.wait_ready()
    yield fleet
    for engine_id in fleet.by_id:
        fleet.stop(engine_id)


@pytest.fixture(autouse=True)
def empty(ranked: Fleet) -> None:
    ranked.forget()


def test_predictions_are_exact_for_each_rank(
    ranked: Fleet, client: httpx.Client, tmp_path: Path
) -> None:
    before = ranked.published()
    with ranked.router(tmp_path / "log", *SPLITTING) as router:
        answers = converse(client, ranked, router, 150, seed="ranks")
    assert_exact(answers)
    assert {answer.prefill for answer in answers} == {"prefill-0"}
    assert sum(answer.num_cached_tokens > 0 for answer in answers) > 30
    after = ranked.published()
    assert set(after) == {("prefill-0", 0), ("prefill-0", 1), ("decode-0", 0)}
    assert all(after[place] - before[place] > 30 for place in after)


def test_only_prefill_is_told_a_rank_and_none_by_a_client(
    ranked: Fleet, client: httpx.Client, tmp_path: Path
) -> None:
    prefill, decode = (ranked.by_id[name] for name in ("prefill-0", "decode-0"))
    with (
        Tap(prefill, tmp_path / "prefill") as to_prefill,
        Tap(decode, tmp_path / "decode") as to_decode,
        RouterProcess([to_prefill.url], [to_decode.url], tmp_path / "log", SPLITTING) as router,
    ):
        router.wait_ready()
        for rank in (0, 1):
            prompt = token_ids(200, f"of rank {rank}")
            ranked.compute("prefill-0", prompt, rank)
            wait_followed(ranked, router)
            to_prefill.take()
            to_decode.take()
            headers = {**EXPLAIN, "X-Data-Parallel-Rank": str(1 - rank)}
            body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 8}
            answer = client.post(f"{router.url}/v1/completions", json=body, headers=headers)
            assert answer.headers["x-transload-cached-tokens"] == "192"
            assert _RANK.findall(to_prefill.take()) == [b"%d" % rank]
            assert _RANK.findall(to_decode.take()) == []
        explained = client.post(f"{router.url}/admin/explain", json=body).json()
        assert {row["prefill_rank"] for row in explained["candidates"]} == {0, 1}
        assert explained["caches"]["prefill-0/1"]["num_tokens"] == 192
