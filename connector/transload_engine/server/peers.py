"""How engines read each other's leases: directly within a process, else over TCP.

**Rules**

* A question is `[verb, engine id, request id]` in MessagePack behind its length in 4 bytes,
  big-endian; so is its answer: tokens or nil to `read`, true or false to `end` and `renew`.
* Nobody at the address is the same as nothing held.
"""

import asyncio
import enum
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from transload_engine.core.handoff import Handoff

ANSWER_S = 5.0
"""A peer answers at once; a hung one must not hold a request for ever."""

MAX_QUESTION_BYTES = 4096
_encoder = msgspec.msgpack.Encoder()


class Verb(enum.StrEnum):
    """What is asked about a lease."""

    READ = "read"
    RENEW = "renew"
    END = "end"


class LeaseHolder(Protocol):
    """One rank, to others."""

    def answer(self, verb: Verb, engine_id: str, request_id: str) -> Sequence[int] | bool | None:
        """See the module."""
        ...


class Peers:
    """The engines of this process by address, and the way to all others."""

    def __init__(self) -> None:
        self._here: dict[tuple[str, int], LeaseHolder] = {}

    def add(self, host: str, port: int, holder: LeaseHolder) -> None:
        """Reach a holder directly from now on."""
        self._here[host, port] = holder

    def remove(self, host: str, port: int) -> None:
        """A holder is gone; nobody answers at its address."""
        self._here.pop((host, port), None)

    async def read(self, handoff: Handoff) -> Sequence[int] | None:
        """What the blocks were computed from, None if they cannot be had."""
        answer = await self._ask(Verb.READ, handoff)
        return answer if isinstance(answer, list) else None

    async def end(self, handoff: Handoff) -> bool:
        """Tell that the blocks are read or will not be; whether they still were held."""
        return await self._ask(Verb.END, handoff) is True

    async def renew(self, handoff: Handoff) -> bool:
        """Have the blocks kept for one more lease; whether they still were held."""
        return await self._ask(Verb.RENEW, handoff) is True

    async def _ask(self, verb: Verb, handoff: Handoff) -> Any:
        holder = self._here.get((handoff.host, handoff.port))
        if holder is not None:
            return holder.answer(verb, handoff.engine_id, handoff.request_id)
        question = _encoder.encode((verb, handoff.engine_id, handoff.request_id))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await _exchange(handoff.host, handoff.port, question)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return None


async def _exchange(host: str, port: int, question: bytes) -> Any:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(len(question).to_bytes(4, "big") + question)
        size = int.from_bytes(await reader.readexactly(4), "big")
        return msgspec.msgpack.decode(await reader.readexactly(size))
    finally:
        writer.close()
        await writer.wait_closed()


class SideChannel:
    """Answers other processes for one holder."""

    def __init__(self, holder: LeaseHolder) -> None:
        self._holder = holder
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which 0 leaves to the system."""
        self._server = await asyncio.start_server(self._accept, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and drop who is asking."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = int.from_bytes(await reader.readexactly(4), "big")
            if size > MAX_QUESTION_BYTES:
                return
            question = msgspec.msgpack.decode(
                await reader.readexactly(size), type=tuple[Verb, str, str]
            )
            answer = _encoder.encode(self._holder.answer(*question))
            writer.write(len(answer).to_bytes(4, "big") + answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError):
            return
        finally:
            writer.close()
