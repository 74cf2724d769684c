"""What the engine tests share: the engines behind the router, and a ledger of what they moved."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from real_engine.launch import MODEL_NAME, Engine
from real_engine.router import RouterProcess

LENGTHS = (5, 127, 128, 129, 300, 512, 1000, 1500)
"""Prompts around the block of 128 tokens, and of many blocks."""

BLOCK_TOKENS = 128
BLOCK_BYTES = 4 * 2 * BLOCK_TOKENS * 128 * 4
"""Layers x KV heads x tokens x (K and V of 64) x float32."""

FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN = 20, 2000
"""Ids between the special tokens and the vocabulary's end."""

AT_ONCE_S = 3.0
"""Within this, both engines are idle after a client left; the leases are 120 s."""

REQUEST_S = 120.0

Item = TypeVar("Item")
Result = TypeVar("Result")

SPLITTING = ("--policy", "prefix")
"""Splits whatever may be split; by cost, a model this small would be decode's alone."""

EXPLAIN = {"x-transload-explain": "1"}

_LOADED = "vllm:external_prefix_cache_hits_total"
_BYTES = "vllm:nixl_bytes_transferred_sum"
_FAILED = "vllm:nixl_num_failed_transfers_total"
_LATE = "vllm:nixl_num_notifications_after_expiry_total"
_EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


@dataclass(frozen=True)
class World:
    """Prefill and decode with NIXL, an aggregated engine for comparison, and the router."""

    prefill: Engine
    decode: Engine
    aggregated: Engine
    router: RouterProcess


@dataclass(frozen=True)
class Moved:
    """What the engines moved between two readings."""

    loaded_tokens: int
    transferred_bytes: int
    failed_transfers: int
    late_notifications: int
    expired_leases: int


class Ledger:
    """Reads both engines' counters at its making, and again for `moved`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before = self._read()

    def moved(self) -> Moved:
        """What has been moved since the ledger was made."""
        after = self._read()
        values = [round(new - old) for new, old in zip(after, self._before, strict=True)]
        return Moved(*values)

    def assert_loaded(self, prompts: Iterable[int]) -> None:
        """Decode loaded exactly these prompts (their tokens), and nothing was late or failed."""
        lengths = list(prompts)
        num_blocks = sum(-(-length // BLOCK_TOKENS) for length in lengths)
        expected = Moved(sum(lengths), num_blocks * BLOCK_BYTES, 0, 0, 0)
        moved = self.moved()
        assert moved == expected, f"moved {moved}, expected {expected}"

    def _read(self) -> list[float]:
        prefill, decode = self._world.prefill.metrics(), self._world.decode.metrics()
        return [
            decode[_LOADED],
            decode[_BYTES],
            decode[_FAILED],
            prefill[_LATE],
            prefill[_EXPIRED],
        ]


def token_ids(length: int, seed: object) -> list[int]:
    """A prompt of this length; equal seeds give equal prompts, others share no block."""
    source = random.Random(f"{length} {seed}")
    return [source.randrange(FIRST_PLAIN_TOKEN, LAST_PLAIN_TOKEN) for _ in range(length)]


def complete(
    client: httpx.Client, url: str, prompt: list[int], *, is_stream: bool = False
) -> list[int]:
    """The greedy answer's token ids, by ``/v1/completions``."""
    body = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": is_stream,
    }
    answer = client.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    if not is_stream:
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids
    return [token for event in events(answer.text) for token in event["choices"][0]["token_ids"]]


def events(text: str) -> list[dict[str, Any]]:
    """The JSON events of a whole SSE body."""
    lines = (line for line in text.splitlines() if line.startswith("data: "))
    return [json.loads(line[6:]) for line in lines if line[6:] != "[DONE]"]


def at_once(work: Callable[[Item], Result], items: list[Item]) -> list[Result]:
    """All of them concurrently, each in a thread of its own; results in the items' order."""
    with ThreadPoolExecutor(len(items)) as threads:
        return list(threads.map(work, items))


def assert_idle(world: World, within_s: float = AT_ONCE_S) -> None:
    """Both engines serve nothing and hold no block, now or within seconds."""
    deadline = time.monotonic() + within_s
    while busy := {**_busy(world.prefill), **_busy(world.decode)}:
        assert time.monotonic() < deadline, f"still held after {within_s} s: {busy}"


def _busy(engine: Engine) -> dict[str, float]:
    """The gauges that are not at rest."""
    metrics = engine.metrics()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return {f"{engine.spec.name} {name}": metrics[name] for name in names if metrics[name] != 0}
