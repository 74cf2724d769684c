"""Leases read from within a process and from outside."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from support.waiting import soon
from transload_engine.core.handoff import Handoff
from transload_engine.server.peers import Peers, SideChannel, Verb

HOST = "127.0.0.1"


class Holder:
    """Holds one lease and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Verb, str, str]] = []

    def answer(self, verb: Verb, engine_id: str, request_id: str) -> Sequence[int] | bool | None:
        self.asked.append((verb, engine_id, request_id))
        if request_id != "held":
            return None if verb is Verb.READ else False
        return [1, 2, 3] if verb is Verb.READ else True


@pytest.fixture
def holder() -> Holder:
    return Holder()


@pytest.fixture
async def port(holder: Holder) -> AsyncIterator[int]:
    channel = SideChannel(holder)
    yield await channel.start(HOST, 0)
    await channel.stop()


@pytest.fixture(params=["within the process", "over TCP"])
def peers(request: pytest.FixtureRequest, holder: Holder, port: int) -> Peers:
    peers = Peers()
    if request.param == "within the process":
        peers.add(HOST, port, holder)
    return peers


async def test_a_lease_is_read_renewed_and_ended(peers: Peers, holder: Holder, port: int) -> None:
    handoff = Handoff("engine", "held", HOST, port, 1)
    assert await soon(peers.read(handoff)) == [1, 2, 3]
    assert await soon(peers.renew(handoff))
    assert await soon(peers.end(handoff))
    assert holder.asked == [(verb, "engine", "held") for verb in (Verb.READ, Verb.RENEW, Verb.END)]


async def test_what_is_not_held_cannot_be_had(peers: Peers, port: int) -> None:
    handoff = Handoff("engine", "gone", HOST, port, 1)
    assert await soon(peers.read(handoff)) is None
    assert not await soon(peers.renew(handoff))
    assert not await soon(peers.end(handoff))


async def test_nobody_at_the_address_is_nothing_held(peers: Peers, port: int) -> None:
    peers.remove(HOST, port)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0)
    mute = server.sockets[0].getsockname()[1]
    assert await soon(peers.read(Handoff("engine", "held", HOST, mute, 1))) is None
    server.close()
    await server.wait_closed()
    assert await soon(peers.read(Handoff("engine", "held", HOST, mute, 1))) is None


@pytest.mark.parametrize("question", [b"\x00\x00\x00\x01\xc1", b"\xff\xff\xff\xff", b"\x00"])
async def test_what_is_no_question_gets_no_answer(port: int, question: bytes) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(question)
    writer.write_eof()
    assert await soon(reader.read()) == b""
    writer.close()
    await writer.wait_closed()
