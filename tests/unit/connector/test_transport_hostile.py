"""Strangers and liars at a holder's port: refused in time, at bounded cost, with no harm done."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from support.transport_world import Holder, client, open_, shrink_buffers, soon, until
from transload_abi import encode_msgpack
from transload_abi.wire import codec, frames, messages
from transload_abi.wire.deadlines import HolderDeadlines
from transload_connector.transports.errors import PeerUnreachable
from transload_connector.transports.holder_connection import MAX_OWED_BYTES, REQUEST_PART_BYTES
from transload_connector.transports.holder_connections import ConnectionLimits

HELLO = messages.Hello((1,), "D", "g", "ab" * 32, 4096)
PATIENT = HolderDeadlines(opening_s=60.0, stall_s=60.0, idle_s=60.0)
HASTY = HolderDeadlines(opening_s=0.2, stall_s=60.0, idle_s=60.0)


@contextmanager
def stranger(holder: Holder) -> Iterator[socket.socket]:
    with socket.create_connection(holder.address, timeout=10) as sock:
        yield sock


def heard(sock: socket.socket) -> list[object]:
    """All that the holder says until it closes."""
    data = b""
    while part := sock.recv(1 << 16):
        data += part
    decoder = frames.FrameDecoder()
    found = list(decoder.feed(data))
    assert all(isinstance(each, frames.MessageFrame) for each in found)
    return [codec.decode(each.body, "holder") for each in found]  # type: ignore[union-attr]


def serves_others(holder: Holder) -> bool:
    """Whether a reader gets what it came for."""
    holder.grant("h", [1])
    with client() as reader:
        return soon(reader.done(open_(reader, holder, "h"))) == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        b"\xff\xff\xff\x7f\x01\x00\x00\x00",
        b"\xff\xff\xff\x7f\x02\x00\x00\x00",
        b"\xff\xff\xff\x7f\x03\x00\x00\x00",
        codec.encode(messages.Attach("ab" * 16, 1, "cd" * 32)),
        codec.encode(messages.Bye()),
    ],
)
def test_what_is_no_hello_is_answered_by_an_error(garbage: bytes) -> None:
    holder = Holder(deadlines=PATIENT)
    with holder.server:
        with stranger(holder) as sock:
            sock.sendall(garbage)
            (said,) = heard(sock)
            assert isinstance(said, messages.Error)
        assert serves_others(holder)
        until(lambda: not holder.server.stats().num_connections, "all are closed")


@pytest.mark.parametrize("beginning", [b"", codec.encode(HELLO)])
def test_a_message_that_is_long_is_not_read_before_a_proof(beginning: bytes) -> None:
    """A tenth of a message of 60 kB is answered: nobody waits for the rest."""
    holder = Holder(deadlines=PATIENT, token=b"secret")
    with holder.server, stranger(holder) as sock:
        sock.sendall(beginning + frames.message_frame(bytes(60_000))[:6000])
        said = heard(sock)[-1]
        assert isinstance(said, messages.Error)
        assert said.code == "bad_frame"


@pytest.mark.parametrize("beginning", [b"", codec.encode(HELLO)[:20], codec.encode(HELLO)])
def test_who_does_not_come_to_the_point_is_closed_in_time(beginning: bytes) -> None:
    holder = Holder(deadlines=HASTY)
    with holder.server, stranger(holder) as sock:
        sock.sendall(beginning)
        while sock.recv(4096):
            pass
        until(lambda: not holder.server.stats().num_connections, "it is closed")


def test_who_takes_no_answers_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opens of 70 bytes whose answers have 12 KB, and nobody who reads them."""
    shrink_buffers(monkeypatch)
    holder = Holder(deadlines=HolderDeadlines(opening_s=60.0, stall_s=1.0, idle_s=60.0))
    most = 0
    with holder.server, stranger(holder) as sock:
        holder.grant("h", [0, 1] * 2000)
        sock.sendall(codec.encode(HELLO))
        assert sock.recv(4096)
        sock.sendall(codec.encode(messages.Prove("00" * 32)))
        sock.sendall(frames.descriptor_frame(encode_msgpack(holder.descriptor)))
        assert sock.recv(4096)
        opens = [codec.encode(messages.Open(id_, "h", "l-h", "r")) for id_ in range(1, 2000)]
        with suppress(ConnectionError):
            sock.sendall(b"".join(opens))
        while holder.server.stats().num_connections:
            most = max(most, holder.server.stats().num_bytes_waiting)
        assert MAX_OWED_BYTES < most < MAX_OWED_BYTES + REQUEST_PART_BYTES // 50 * 13_000


def test_more_connections_than_a_peer_may_have_are_turned_away() -> None:
    limits = ConnectionLimits(max_connections=8, max_connections_per_peer=3)
    holder = Holder(deadlines=PATIENT, limits=limits)
    with holder.server:
        with stranger(holder), stranger(holder), stranger(holder):
            until(lambda: holder.server.stats().num_connections == 3, "all are there")
            with client() as reader, pytest.raises(PeerUnreachable, match="as many connections"):
                soon(reader.open(holder.address, "h", "l-h", "r"))
            assert holder.server.stats().num_turned_away == 1
        until(lambda: not holder.server.stats().num_connections, "they are gone")
        assert serves_others(holder)


def test_more_connections_than_there_may_be_are_turned_away() -> None:
    limits = ConnectionLimits(max_connections=1, max_connections_per_peer=3)
    holder = Holder(deadlines=PATIENT, limits=limits)
    with holder.server, stranger(holder):
        until(lambda: holder.server.stats().num_connections == 1, "it is there")
        with stranger(holder) as sock:
            (said,) = heard(sock)
            assert isinstance(said, messages.Bye)
