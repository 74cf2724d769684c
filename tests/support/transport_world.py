"""A holder and readers over loopback sockets, with blocks whose bytes tell what they are."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from transload_abi.builders.by_hand import packed_pool, role
from transload_abi.types import Descriptor, Group, Model, Owner, Rope
from transload_abi.wire import messages
from transload_abi.wire.deadlines import HolderDeadlines, ReaderDeadlines, Terms
from transload_abi.wire.ledger import Freed
from transload_abi.wire.payload import payload_of
from transload_connector.transports import holder_connections, sockets
from transload_connector.transports.holder_server import HolderServer
from transload_connector.transports.reader_client import ReaderClient
from transload_connector.transports.reader_requests import OpenHandoff

T = TypeVar("T")
PATIENCE_S = 10.0
_PAUSE = threading.Event()
OVERWRITTEN = b"\xee"
NUM_BLOCKS = 64
NUM_LAYERS = 2
TOKENS_PER_BLOCK = 4
NUM_HEADS = 2
GROUP = "attention"
HOLDER_WAITS = HolderDeadlines(opening_s=5.0, stall_s=5.0, idle_s=20.0)
READER_WAITS = ReaderDeadlines(opening_s=5.0, answer_s=5.0, stall_s=5.0, read_s=20.0, idle_s=20.0)
TERMS = Terms(term_s=20.0, max_hold_s=60.0)


def descriptor(
    head_dim: int = 32, num_blocks: int = NUM_BLOCKS, num_layers: int = NUM_LAYERS
) -> Descriptor:
    """Keys and values of 16 bits, blocks outermost, block 0 null; a page is 64 B a `head_dim`."""
    cell = NUM_HEADS * head_dim
    plane = TOKENS_PER_BLOCK * cell
    pool, place = packed_pool(
        "kv",
        num_layers=num_layers,
        num_blocks=num_blocks,
        page_bytes=2 * plane * 2,
        outermost="blocks",
        memory="host",
        align=1,
    )
    axes: dict[str, Any] = {
        "N": (TOKENS_PER_BLOCK, cell),
        "H": (NUM_HEADS, head_dim),
        "D": (head_dim, 1),
    }
    group = Group(
        id=GROUP,
        kind="full",
        layers=tuple(range(num_layers)),
        tokens_per_block=TOKENS_PER_BLOCK,
        places=(place,),
        roles=(role("k", "bf16", **axes), role("v", "bf16", first=plane, **axes)),
        null_block=0,
        owner=Owner(heads=(0, NUM_HEADS, NUM_HEADS)),
    )
    return Descriptor(
        "kvabi/1", Model("small", num_layers, Rope("none"), revision="r1"), (pool,), (group,)
    )


LARGE: Final = descriptor(head_dim=4096)
"""16 MiB, a block 256 KiB: more than sockets hold between two sides, so a read can be stopped."""


def content(num_bytes: int) -> bytearray:
    """Bytes that are alike in no two blocks: 251 is no divisor of their sizes."""
    return bytearray((bytes(range(251)) * (num_bytes // 251 + 1))[:num_bytes])


class Holder:
    """A server, its memory, and what it has freed.

    Attributes:
        freed: In order; `wait_freed` waits for more.
        overwrites: Whether all blocks are overwritten as soon as some are free.
    """

    def __init__(self, described: Descriptor | None = None, **options: Any) -> None:
        self.descriptor = described or descriptor()
        self.memory = content(self.descriptor.pools[0].num_bytes)
        self.freed: list[Freed] = []
        self.overwrites = False
        self._changed = threading.Condition()
        options = {
            "name": "P",
            "generation": "g1",
            "deadlines": HOLDER_WAITS,
            "terms": TERMS,
            **options,
        }
        self.server = HolderServer(
            self.descriptor, {"kv": self.memory}, on_freed=self._on_freed, **options
        )

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address

    def grant(self, handoff: str, blocks: Sequence[int], readers: int = 1) -> None:
        """Under the lease `l-` and the handoff's name."""
        self.server.grant(handoff, f"l-{handoff}", {0: blocks}, len(blocks) * 4, readers)

    def wait_freed(self, number: int = 1) -> list[Freed]:
        """Those freed so far, which must become so many soon."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.freed) >= number, PATIENCE_S)
        return self.freed

    def _on_freed(self, freed: Freed) -> None:
        with self._changed:
            if self.overwrites:
                self.memory[:] = OVERWRITTEN * len(self.memory)
            self.freed.append(freed)
            self._changed.notify_all()


def payload(holder: Descriptor, memory: bytes | bytearray, read: messages.Read, ids: Any) -> bytes:
    """What a read must bring, by the runs alone."""
    runs = payload_of(holder, read).runs_of(ids)
    return b"".join(bytes(memory[run.offset : run.offset + run.num_bytes]) for run in runs)


def asked(blocks: Sequence[messages.Range], **fields: Any) -> messages.Read:
    """A read's message, for `payload`."""
    return messages.Read(1, "h", GROUP, tuple(blocks), **fields)


def client(described: Descriptor | None = None, **options: Any) -> ReaderClient:
    """A reader with blocks like the holder's."""
    options = {"name": "D", "generation": "g9", "deadlines": READER_WAITS, **options}
    return ReaderClient(described or descriptor(), **options)


@contextmanager
def pair(
    described: Descriptor | None = None,
    num_streams: int = 2,
    waits: ReaderDeadlines = READER_WAITS,
    **options: Any,
) -> Iterator[tuple[Holder, ReaderClient]]:
    """A holder with such options, and a reader of the same blocks and token."""
    holder = Holder(described, **options)
    token = options.get("token")
    with (
        holder.server,
        client(holder.descriptor, token=token, num_streams=num_streams, deadlines=waits) as reader,
    ):
        yield holder, reader


def shrink_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernel take 128 KiB of a holder's data, and no more."""

    def tune(sock: socket.socket) -> None:
        sockets.tune(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)

    monkeypatch.setattr(holder_connections, "tune", tune)


def soon(future: Future[T]) -> T:
    """The outcome of something that must end soon."""
    return future.result(PATIENCE_S)


def open_(reader: ReaderClient, holder: Holder, handoff: str, share: str = "r") -> OpenHandoff:
    return soon(reader.open(holder.address, handoff, f"l-{handoff}", share, generation="g1"))


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for what has no event of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        _PAUSE.wait(0.002)


def threads() -> set[str]:
    """Names of this process's threads of transports."""
    return {each.name for each in threading.enumerate() if each.name.startswith("transload-")}


def num_descriptors() -> int:
    """How many file descriptors are open."""
    return len(list(Path("/proc/self/fd").iterdir()))
