"""The other engine tests can fail: each of their instruments is shown what it must catch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.world import (
    BLOCK_BYTES,
    SPLITTING,
    Ledger,
    Moved,
    World,
    assert_idle,
    complete,
    token_ids,
)
from real_engine.launch import MODEL_NAME
from real_engine.router import RouterProcess

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

_REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}


def test_a_lost_handoff_is_seen(world: World, client: httpx.Client, tmp_path: Path) -> None:
    """With a prefill engine that hands nothing off, answers are right and the ledger is not."""
    prompt = token_ids(300, "lost")
    engines = ([world.aggregated.url], [world.decode.url])
    with RouterProcess(*engines, tmp_path / "log", SPLITTING) as router:
        router.wait_ready()
        ledger = Ledger(world)
        tokens = complete(client, router.url, prompt)
    assert tokens == complete(client, world.aggregated.url, prompt)
    assert ledger.moved() == Moved(0, 0, 0, 0, 0)
    with pytest.raises(AssertionError):
        ledger.assert_loaded([300])


def test_another_prompts_blocks_are_seen(world: World, client: httpx.Client) -> None:
    """Decode answers from the blocks it was handed: a wrong handoff gives wrong tokens."""
    asked, read = token_ids(300, "asked"), token_ids(300, "read")
    ledger = Ledger(world)
    answer = _decode(client, world, asked, _prefill(client, world, read))
    ledger.assert_loaded([300])
    assert answer != complete(client, world.aggregated.url, asked)


def test_a_held_handoff_is_seen(world: World, client: httpx.Client) -> None:
    """Blocks that wait for decode are not idle, until an engine's refusal lets them go."""
    handoff = _prefill(client, world, token_ids(300, "held"))
    with pytest.raises(AssertionError, match="prefill vllm:kv_cache_usage_perc"):
        assert_idle(world, within_s=0.5)
    _abandon(client, world, handoff)
    assert_idle(world)


def test_a_handoff_used_twice_is_seen(world: World, client: httpx.Client) -> None:
    """The second use reads blocks that prefill no longer holds: counted as late."""
    prompt = token_ids(300, "twice")
    handoff = _prefill(client, world, prompt)
    ledger = Ledger(world)
    _decode(client, world, prompt, handoff)
    _abandon(client, world, handoff)
    assert ledger.moved() == Moved(300, 3 * BLOCK_BYTES, 0, 1, 0)


def test_a_failed_load_is_seen(world: World, client: httpx.Client) -> None:
    """A handoff of an engine that does not exist fails its request: nothing is recomputed.

    Decode counts two failures, 5 s apart: its handshake for the load, and that for the release.
    """
    prompt = token_ids(300, "failed")
    nowhere = {"remote_engine_id": "nowhere", "remote_port": 1}
    handoff = _prefill(client, world, prompt)
    ledger = Ledger(world)
    body = _body(prompt, {**handoff, **nowhere})
    answer = client.post(f"{world.decode.url}/v1/completions", json=body)
    assert answer.status_code == 500
    _abandon(client, world, handoff)
    deadline = time.monotonic() + 30
    while ledger.moved().failed_transfers < 2:
        assert time.monotonic() < deadline


def _prefill(client: httpx.Client, world: World, prompt: list[int]) -> dict[str, Any]:
    body = {**_body(prompt, _REMOTE_DECODE), "max_tokens": 1}
    answer = client.post(f"{world.prefill.url}/v1/completions", json=body)
    handoff: dict[str, Any] = answer.json()["kv_transfer_params"]
    return handoff


def _decode(
    client: httpx.Client, world: World, prompt: list[int], handoff: dict[str, Any]
) -> list[int]:
    answer = client.post(f"{world.decode.url}/v1/completions", json=_body(prompt, handoff))
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def _abandon(client: httpx.Client, world: World, handoff: dict[str, Any]) -> None:
    """A request that decode refuses before reading its prompt, and so tells prefill to release."""
    body = {**_body([0], handoff), "stream": True, "use_beam_search": True}
    answer = client.post(f"{world.decode.url}/v1/completions", json=body)
    assert answer.status_code == 400


def _body(prompt: list[int], handoff: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "kv_transfer_params": handoff,
    }
