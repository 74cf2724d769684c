"""Several engines with small caches that publish their events, and what routing tests ask them.

Every engine has 15 usable blocks of 32 tokens, so a handful of prompts evicts the others. Tests
that send one request after another wait until the router has followed all events before they send
the next: what it predicts then has no excuse.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import zmq

from engine.world import AT_ONCE_S, EXPLAIN, FIRST_PLAIN_TOKEN, REQUEST_S
from real_engine.launch import MODEL_NAME, POLL_S, Engine, Engines, EngineSpec, Role, scrape
from real_engine.router import RouterProcess

BLOCK_TOKENS = 32
"""vLLM's smallest on a CPU."""

NUM_BLOCKS = 16
"""Block 0 is never used."""

MAX_MODEL_LEN = (NUM_BLOCKS - 1) * BLOCK_TOKENS
"""A longer one does not start: its longest request would not fit."""

REPLAY_S = 10.0
"""An idle publisher looks for replay requests every 0.1 s."""

PREDICTED = "x-transload-predicted-cached-tokens"
FOLLOWED = 'transload_kv_events_last_sequence{{engine="{}",rank="{}"}}'
"""Sequence of the last batch that the router applied."""

_END = b"\xff" * 8

Place = tuple[str, int]
"""An engine's name and a data-parallel rank: who publishes."""


@dataclass(frozen=True)
class Answer:
    """What an engine reported of one request, and what the router said of it."""

    token_ids: list[int]
    text: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_predicted_tokens: int
    prefill: str | None
    decode: str

    @property
    def computed_by(self) -> str:
        """The engine whose cache the figures are about."""
        return self.prefill or self.decode

    @property
    def error(self) -> int:
        """Tokens that the router promised too many; negative if too few."""
        return self.num_predicted_tokens - self.num_cached_tokens


class Fleet:
    """The engines by the router's names for them."""

    def __init__(self, engines: Engines, specs: Sequence[EngineSpec]) -> None:
        """Starts them all at once."""
        self._engines = engines
        self._published: dict[Place, Published] = {}
        self.by_id: dict[str, Engine] = {}
        for role, pool in ((Role.PREFILL, "prefill"), (Role.DECODE, "decode")):
            for index, spec in enumerate([one for one in specs if one.role is role]):
                self.by_id[f"{pool}-{index}"] = engines.start(spec)

    def wait_ready(self) -> None:
        """Blocks until all of them serve."""
        for engine_id in self.by_id:
            self._wait_ready(engine_id)

    def urls(self, pool: str) -> list[str]:
        """Addresses of one pool, in order."""
        return [e.url for name, e in self.by_id.items() if name.startswith(pool)]

    def stop(self, engine_id: str) -> None:
        """Ends one engine; it keeps its place."""
        self.by_id[engine_id].stop()

    def start_again(self, engine_id: str) -> None:
        """A new process at the ended one's address; blocks until it serves."""
        ended = self.by_id[engine_id]
        self.by_id[engine_id] = self._engines.start(ended.spec, ended.ports)
        self._wait_ready(engine_id)

    def forget(self) -> None:
        """Idle engines with empty caches, and that published."""
        for engine_id in self.by_id:
            self.reset(engine_id)

    def reset(self, engine_id: str) -> None:
        """Empties one engine's cache and lets it say so: it publishes with its next step."""
        engine = self.by_id[engine_id]
        deadline = time.monotonic() + AT_ONCE_S
        while not self.reset_silently(engine_id):
            assert time.monotonic() < deadline, f"{engine_id} still holds blocks"
        for rank in range(engine.spec.num_ranks):
            self.compute(engine_id, [FIRST_PLAIN_TOKEN], rank)

    def reset_silently(self, engine_id: str) -> bool:
        """Empties an idle engine's cache; nobody is told before its next step.

        One that holds blocks for anyone says 200, and does nothing.
        """
        url = f"{self.by_id[engine_id].url}/reset_prefix_cache"
        answer = httpx.post(url, timeout=REQUEST_S)
        return bool(answer.raise_for_status().json()["success"])

    def compute(self, engine_id: str, prompt: list[int], rank: int = 0) -> None:
        """One request to one engine, past any router."""
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1}
        url = f"{self.by_id[engine_id].url}/v1/completions"
        headers = {"x-data-parallel-rank": str(rank)}
        httpx.post(url, json=body, headers=headers, timeout=REQUEST_S).raise_for_status()

    def published(self) -> dict[Place, int]:
        """Each publisher's last sequence."""
        return {place: len(batches) - 1 for place, batches in self.batches().items()}

    def batches(self) -> dict[Place, list[list[Any]]]:
        """All that each has published since it started."""
        return {place: published.batches() for place, published in self._published.items()}

    def _wait_ready(self, engine_id: str) -> None:
        engine = self.by_id[engine_id]
        engine.wait_ready()
        sources = httpx.get(f"{engine.url}/kv_event_sources", timeout=REQUEST_S).json()
        for rank, source in sources.items():
            self._published[engine_id, int(rank)] = Published(source["replay_endpoint"])

    @contextmanager
    def router(self, log: Path, *options: str) -> Iterator[RouterProcess]:
        """A router of one's own in front of these engines, ready."""
        prefill, decode = self.urls("prefill"), self.urls("decode")
        with RouterProcess(prefill, decode, log, options) as router:
            router.wait_ready()
            yield router


def small(name: str, role: Role, extra_args: Sequence[str] = ()) -> EngineSpec:
    """An engine with a small cache; options for others are set on what this returns."""
    sizes = ("--block-size", str(BLOCK_TOKENS), "--max-model-len", str(MAX_MODEL_LEN))
    args = (*sizes, *extra_args)
    return EngineSpec(name, role, num_blocks=NUM_BLOCKS, has_events=True, extra_args=args)


class Published:
    """What one publisher has said, by its replay: ``[timestamp, events, rank]`` each."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._batches: list[list[Any]] = []

    def batches(self) -> list[list[Any]]:
        """All of them; not to be changed.

        Asks for those that are not known yet: the publisher drops what exceeds its socket's queue
        of 1,000 messages, the end marker included.
        """
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.RCVTIMEO, round(REPLAY_S * 1000))
            dealer.connect(self._endpoint)
            dealer.send_multipart([b"", len(self._batches).to_bytes(8, "big")])
            while True:
                _, _, sequence, payload = dealer.recv_multipart()
                if sequence == _END:
                    return self._batches
                assert int.from_bytes(sequence, "big") == len(self._batches)
                self._batches.append(msgspec.msgpack.decode(payload))


def num_events(fleet: Fleet) -> Counter[str]:
    """How many events of each type the engines have published."""
    return Counter(
        event["type"]
        for batches in fleet.batches().values()
        for batch in batches
        for event in batch[1]
    )


def wait_followed(fleet: Fleet, router: RouterProcess) -> None:
    """Blocks until the router has applied all that the engines have published.

    It may be ahead, too: of an engine that started again and counts anew.
    """
    deadline = time.monotonic() + REPLAY_S
    while True:
        published = fleet.published()
        metrics = scrape(router.url)
        differing = {
            place: (metrics.get(FOLLOWED.format(*place)), last)
            for place, last in published.items()
            if metrics.get(FOLLOWED.format(*place), -1) != last
        }
        if not differing:
            return
        assert time.monotonic() < deadline, f"(followed, published): {differing}"
        time.sleep(POLL_S)


def ask(client: httpx.Client, url: str, body: dict[str, Any], *, is_stream: bool) -> Answer:
    """One request by chat if it has messages, else by completions."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    fixed = {"model": MODEL_NAME, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    got = client.post(f"{url}{path}", json={**fixed, **streamed, **body}, headers=EXPLAIN)
    assert got.status_code == 200, got.text
    chunks = _chunks(got.text) if is_stream else [got.json()]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    return Answer(
        token_ids=[token for choice in choices for token in choice.get("token_ids") or []],
        text="".join(map(_text, choices)),
        num_prompt_tokens=usage["prompt_tokens"],
        num_cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        num_predicted_tokens=int(got.headers[PREDICTED]),
        prefill=got.headers.get("x-transload-prefill"),
        decode=got.headers["x-transload-decode"],
    )


def assert_exact(answers: list[Answer]) -> None:
    """No prediction was off by a token."""
    wrong = {number: answer for number, answer in enumerate(answers) if answer.error}
    assert wrong == {}, f"{len(wrong)} of {len(answers)} predictions are wrong"


def _text(choice: dict[str, Any]) -> str:
    said = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
    return said.get("content") or ""


def _chunks(text: str) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line)
    return [json.loads(line) for line in lines if line != "[DONE]"]
