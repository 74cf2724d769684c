"""The stock of behaviours for scripted engines: refusals, deaths, silences, odd bytes."""

import asyncio
import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from support.scripted_engine import Behaviour, Exchange, Headers
from support.vllm_api import BY_PATH, Generation, Reply
from support.vllm_behaviour import JSON, SSE, VllmBehaviour, stream_events

Death = Literal["reset", "close"]


async def hang(exchange: Exchange) -> None:
    """Never answer."""
    await exchange.lost.wait()


async def reset_before_header(exchange: Exchange) -> None:
    """RST without a byte of answer."""
    exchange.reset()


async def close_before_header(exchange: Exchange) -> None:
    """FIN without a byte of answer."""
    exchange.close()


def answer(status: int, body: bytes = b"", headers: Headers | None = None) -> Behaviour:
    """A whole answer with its length."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(status, body, headers)

    return behaviour


def refuse(status: int, message: str = "no", headers: Headers | None = None) -> Behaviour:
    """An error in the engine's own words, as the path's API shapes them."""

    async def behaviour(exchange: Exchange) -> None:
        body = BY_PATH[exchange.request.path].error(status, message)
        await exchange.answer(status, body, [JSON, *(headers or [])])

    return behaviour


def raw(*pieces: bytes, then: Literal["keep", "close", "reset", "hang"] = "keep") -> Behaviour:
    """Bytes as they are, each piece in its own write."""

    async def behaviour(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.write(piece)
        await _end(exchange, then)

    return behaviour


def stream(
    chunks: Iterable[bytes],
    *,
    gates: dict[int, asyncio.Event] | None = None,
    headers: Headers | None = None,
) -> Behaviour:
    """A 200 stream of these chunks; the n-th waits for its gate."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, [*(headers or [SSE]), ("transfer-encoding", "chunked")])
        for number, chunk in enumerate(chunks):
            if gates and number in gates:
                await gates[number].wait()
            await exchange.chunk(chunk)
        await exchange.end_chunks()

    return behaviour


def die_in_body(after_events: int = 2, how: Death = "reset", cut: int = 0) -> Behaviour:
    """A good answer that ends in its middle: after events and `cut` bytes of the next, or half."""

    async def behaviour(exchange: Exchange) -> None:
        reply = _reply(exchange)
        if exchange.request.json().get("stream"):
            await exchange.head(200, [SSE, ("transfer-encoding", "chunked")])
            for data in reply.events[:after_events]:
                await exchange.chunk(data)
            if cut:
                await exchange.chunk(reply.events[after_events][:cut])
        else:
            length = len(reply.whole)
            await exchange.head(200, [JSON, ("content-length", str(length))])
            await exchange.write(reply.whole[: length // 2])
        await _end(exchange, how)

    return behaviour


def stall_in_body(after_events: int = 2) -> Behaviour:
    """A good answer that falls silent in its middle."""

    async def behaviour(exchange: Exchange) -> None:
        reply = _reply(exchange)
        if exchange.request.json().get("stream"):
            await exchange.head(200, [SSE, ("transfer-encoding", "chunked")])
            for data in reply.events[:after_events]:
                await exchange.chunk(data)
        else:
            length = len(reply.whole)
            await exchange.head(200, [JSON, ("content-length", str(length))])
            await exchange.write(reply.whole[: length // 2])
        await exchange.lost.wait()

    return behaviour


@dataclass(eq=False)
class Gate:
    """Holds requests until it is opened.

    Attributes:
        reached: Set when a request has come.
        opened: What the held requests wait for.
    """

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def before(self, behaviour: Behaviour | None = None) -> Behaviour:
        """A behaviour (the engine's default) that starts when the gate is open."""

        async def held(exchange: Exchange) -> None:
            self.reached.set()
            await self.opened.wait()
            await (behaviour or exchange.engine.default)(exchange)

        return held


def gated_stream(gates: dict[int, asyncio.Event]) -> Behaviour:
    """The stream that vLLM would send, the n-th event behind its gate."""

    async def behaviour(exchange: Exchange) -> None:
        await stream_events(exchange, _reply(exchange).events, gates)

    return behaviour


def gzipped(exchange: Exchange) -> tuple[bytes, Headers]:
    """A whole answer as a compressing engine would send it, and its headers."""
    body = gzip.compress(_reply(exchange).whole, mtime=0)
    return body, [JSON, ("content-encoding", "gzip")]


def _reply(exchange: Exchange) -> Reply:
    """What vLLM would answer; a prefill leg's handoff is not booked, for it never arrives."""
    api = BY_PATH[exchange.request.path]
    default = exchange.engine.default
    if not isinstance(default, VllmBehaviour):
        return api.reply(Generation(model="m"))
    return api.reply(default.generation(exchange, api, exchange.request.json()))


async def _end(exchange: Exchange, how: str) -> None:
    if how == "reset":
        exchange.reset()
    elif how == "close":
        exchange.close()
    elif how == "hang":
        await exchange.lost.wait()
