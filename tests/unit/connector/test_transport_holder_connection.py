"""One connection of a holder: what it waits for, once its machine has ended it."""

import selectors
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from support.transport_world import PATIENCE_S
from transload_connector.transports.holder_connection import HolderConnection, Job

FRAME = bytes(1 << 20)
"""More than two sockets hold between them."""


class Machine:
    """Of a data stream, and its session: whatever the reader says there ends the stream."""

    stream = 1
    session = None

    def __init__(self) -> None:
        self.is_over = False
        self.sent_bytes: list[int] = []

    def feed(self, _data: bytes, _now: float) -> list[object]:
        self.is_over = True
        return []

    def data_to_send(self) -> bytes:
        return b""

    def deadline(self) -> None:
        return None

    def may_send(self, _read: int, _now: float) -> bool:
        return not self.is_over

    def sent(self, _read: int, num_bytes: int, _now: float) -> None:
        self.sent_bytes.append(num_bytes)


class Frames:
    """Those of one read."""

    read = 1

    def next_frame(self) -> tuple[int, list[bytes]]:
        return len(FRAME), [FRAME]


class Owner:
    """Notes what is waited for."""

    def __init__(self) -> None:
        self.mask = 0

    def now(self) -> float:
        return 0.0

    def watch(self, _sock: socket.socket, mask: int, _of: HolderConnection) -> None:
        self.mask = mask

    def took(self, connection: HolderConnection, _events: list[object]) -> None:
        connection.pump()

    def owes(self, _session: object) -> None:
        pass

    def count_sent(self, _num_bytes: int) -> None:
        pass


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The holder's end and the reader's."""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.settimeout(PATIENCE_S)
        yield near, far


def test_a_data_stream_that_was_talked_on_finishes_its_frame_and_waits_for_the_end_alone(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    owner: Any = Owner()
    machine: Any = Machine()
    frames: Any = Frames()
    connection = HolderConnection(owner, near, "peer", machine, 60.0)
    for _ in range(3):
        connection.serve(Job(machine, frames, len(FRAME)))
    connection.pump()
    assert owner.mask == selectors.EVENT_READ | selectors.EVENT_WRITE, "for the frame's rest"

    far.send(b"x")
    connection.ready(selectors.EVENT_READ)
    assert machine.is_over
    num_bytes = 0
    while owner.mask & selectors.EVENT_WRITE:
        assert num_bytes < len(FRAME), "the frame is out, and it would be written for ever"
        num_bytes += len(far.recv(1 << 16))
        connection.ready(selectors.EVENT_WRITE)
    while part := far.recv(1 << 16):
        num_bytes += len(part)
    assert num_bytes == len(FRAME), "and no frame behind it"
    assert machine.sent_bytes == [len(FRAME)]
    assert owner.mask == selectors.EVENT_READ
