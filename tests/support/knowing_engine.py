"""Scripted engines that tell of themselves: what their caches hold, and what their tokens are."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support import vllm_api
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Exchange, Leg
from support.small_tokenizers import VECTORS
from support.vllm_api import COMPLETIONS, Api, Body, dump
from support.vllm_behaviour import VllmBehaviour
from support.waiting import until
from support.zmq_publisher import CLEARED, ZmqPublisher, batch
from transload_router.core.bodies.members import append_member, read_members
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.tokens.job import ChatJob, TextJob
from transload_router.core.tokens.read import read_prompt
from transload_router.core.tokens.tokens import Tokens

BLOCK = 16
TOKENIZER = VECTORS / "tokenizer"
EXPLAIN = {"x-transload-explain": "1"}
_hashes = itertools.count(1)


@dataclass(eq=False)
class KnowingVllm(VllmBehaviour):
    """vLLM that publishes events and answers `/tokenize`.

    Attributes:
        publishers: By rank; told of by `/kv_event_sources`, which is not there without any.
        tokens: What `/tokenize` answers with, which is not there without it.
        told_ids: What a prefill leg answers to `return_token_ids`.
    """

    publishers: dict[int, ZmqPublisher] = field(default_factory=dict)
    tokens: Tokens | None = None
    told_ids: list[int] = field(default_factory=lambda: [7, 8, 9])

    async def _answer_other(self, exchange: Exchange) -> None:
        path = exchange.request.path
        if path == "/kv_event_sources" and self.publishers:
            await exchange.answer(200, dump(self.sources()))
        elif path == "/tokenize" and self.tokens is not None:
            await exchange.answer(200, dump(self._tokenize(exchange.request.body)))
        else:
            await super()._answer_other(exchange)

    def sources(self) -> Body:
        """As `/kv_event_sources` has them."""
        return {
            str(rank): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": one.endpoint,
                "replay_endpoint": one.replay_endpoint,
                "topic": "kv",
            }
            for rank, one in self.publishers.items()
        }

    def _tokenize(self, body: bytes) -> Body:
        assert self.tokens is not None
        members = read_members(body)
        job = read_prompt("chat" if "messages" in members else "completions", members)
        assert isinstance(job, ChatJob | TextJob), job
        prompt = self.tokens.prompt(job, Identity("any"))
        ids = ids_of(prompt.tokens)  # type: ignore[union-attr]
        return {"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None}

    async def _generate(self, exchange: Exchange, api: Api) -> None:
        request = exchange.request
        if request.leg is not Leg.PREFILL or not request.json().get("return_token_ids"):
            await super()._generate(exchange, api)
            return
        generation = self.generation(exchange, api, request.json())
        whole = api.reply(generation).whole
        self.issue(exchange, generation.handoff)
        # As text: a handoff must come back byte by byte.
        if api is COMPLETIONS:
            told = b'"choices":[{"prompt_token_ids":' + dump(self.told_ids) + b","
            answer = whole.replace(b'"choices":[{', told, 1)
            assert answer != whole
        else:
            answer = append_member(whole, "prompt_token_ids", dump(self.told_ids))
        await exchange.answer(200, answer)


def ids_of(tokens: bytes) -> list[int]:
    """Packed ids as numbers."""
    return [int.from_bytes(tokens[at : at + 4], "little") for at in range(0, len(tokens), 4)]


def stored(
    ids: Sequence[int], parent: int | None = None, **more: object
) -> tuple[dict[str, object], list[int]]:
    """An event of the whole blocks of a prompt, and their names."""
    names = [next(_hashes) for _ in range(len(ids) // BLOCK)]
    event: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": list(ids[: len(names) * BLOCK]),
        "block_size": BLOCK,
        "lora_id": None,
        "lora_name": None,
        "medium": "GPU",
        **more,
    }
    return event, names


@dataclass(eq=False)
class KnownFleet:
    """A fleet, and what the router knows of its caches.

    Attributes:
        publishers: By (engine id, rank).
    """

    fleet: Fleet
    publishers: dict[tuple[str, int], ZmqPublisher]

    @property
    def router(self) -> Any:
        """The router's tables."""
        return self.fleet.router.app.state.router

    def behaviour(self, engine_id: str) -> KnowingVllm:
        """How an engine behaves."""
        role, _, number = engine_id.partition("-")
        pool = self.fleet.prefill if role == "prefill" else self.fleet.decode
        default = pool[int(number)].default
        assert isinstance(default, KnowingVllm)
        return default

    async def hold(self, engine_id: str, ids: Sequence[int], rank: int = 0, **more: Any) -> None:
        """Have an engine announce a prompt's blocks, and wait until the router knows."""
        await self.publish(engine_id, stored(ids, **more)[0], rank=rank)

    async def clear(self, engine_id: str, rank: int = 0) -> None:
        """Have an engine announce that its cache is empty, and wait until the router knows."""
        await self.publish(engine_id, CLEARED, rank=rank)

    async def publish(self, engine_id: str, *events: object, rank: int = 0) -> None:
        """Publish a batch, and wait until the router has it."""
        key = (engine_id, rank)
        number = await self.publishers[key].publish(batch(1.0, *events, rank=rank))
        await until(lambda: self._last(key) >= number, f"{key} followed to {number}")

    def _last(self, key: tuple[str, int]) -> int:
        position = self.router.stream_positions().get(key)
        return -1 if position is None else position.seq

    async def followed(self, *keys: tuple[str, int]) -> None:
        """Wait until these streams are exact."""
        streams = self.router.streams
        await until(
            lambda: all(streams.get(key) is StreamState.EXACT for key in keys), f"{keys} exact"
        )

    async def ask(self, path: str, body: Body, **headers: str) -> Mapping[str, str]:
        """The answer's headers, which explain it."""
        answer = await self.fleet.router.client.post(
            path, json={"model": vllm_api.MODEL, **body}, headers={**EXPLAIN, **headers}
        )
        assert answer.status_code == 200, answer.text
        return answer.headers


@contextlib.asynccontextmanager
async def serve_known(
    num_prefill: int = 1,
    num_decode: int = 1,
    *,
    ranks: Mapping[str, int] | None = None,
    tokens: Tokens | None = None,
    adjust: Callable[[str, KnowingVllm], None] | None = None,
    **settings: Any,
) -> AsyncIterator[KnownFleet]:
    """A router that follows scripted engines' events and knows their tokens.

    Args:
        num_prefill: Engines in the pool.
        num_decode: Engines in the pool.
        ranks: Publishers by engine id; one each unless told, 0 for engines that tell of none.
        tokens: The engines'.
        adjust: Called with each engine's id and behaviour before it is asked anything.
        **settings: Over those of other tests.
    """
    ids = [f"prefill-{i}" for i in range(num_prefill)] + [f"decode-{i}" for i in range(num_decode)]
    counts = {name: (ranks or {}).get(name, 1) for name in ids}
    publishers = {(n, r): ZmqPublisher() for n, count in counts.items() for r in range(count)}

    def behave(name: str) -> KnowingVllm:
        engine_id = f"{'prefill' if name[0] == 'p' else 'decode'}-{name[1:]}"
        own = {rank: one for (owner, rank), one in publishers.items() if owner == engine_id}
        behaviour = KnowingVllm(publishers=own, tokens=tokens)
        if adjust is not None:
            adjust(engine_id, behaviour)
        return behaviour

    values = {"policy": "prefix", "response_header_timeout_s": 20.0, **settings}
    try:
        async with serve_fleet(num_prefill, num_decode, behave=behave, **values) as fleet:
            known = KnownFleet(fleet, publishers)
            if values.get("kv_events") != "off":
                await known.followed(*publishers)
            yield known
    finally:
        await asyncio.gather(*(one.close() for one in publishers.values()))
