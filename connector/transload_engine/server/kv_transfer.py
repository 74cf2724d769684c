"""What a rank asks of whoever moves blocks: to hold some for others, and to fetch others' here.

Knows no sockets and no torch.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from transload_abi.wire.deadlines import HolderDeadlines, ReaderDeadlines
from transload_abi.wire.ledger import Freed
from transload_engine.core.handoff import Grant, Handoff
from transload_engine.core.scheduler import Load
from transload_engine.core.transfers import FailedLoad, Loaded


class KvTransport(enum.StrEnum):
    """The way that blocks take.

    Attributes:
        AUTO: Those of an engine on this host are read in its memory, all others over TCP.
        SHM: Memory alone: what is not there is not loaded.
        TCP: The network alone, and nobody may read this engine's memory.
    """

    AUTO = "auto"
    SHM = "shm"
    TCP = "tcp"


@dataclass(frozen=True)
class TransferSettings:
    """How blocks are moved.

    Attributes:
        host: To listen at, and what others are told.
        port: Likewise; 0 is any.
        token: Shared with other engines; None: whoever connects may read.
        lease_s: How long blocks are kept for an engine that does not come.
        allows_lossy: Whether numbers may be rounded on their way here.
        transport: The way that blocks take.
        reader_deadlines, holder_deadlines: For other engines.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: bytes | None = None
    lease_s: float = 30.0
    allows_lossy: bool = False
    transport: KvTransport = KvTransport.AUTO
    reader_deadlines: ReaderDeadlines = field(default_factory=ReaderDeadlines)
    holder_deadlines: HolderDeadlines = field(default_factory=HolderDeadlines)


class Transfer(Protocol):
    """One rank's blocks, to others, and the way to theirs. Called from one event loop.

    Attributes:
        host, port: Where others read.
    """

    host: str
    port: int

    def grant(self, grant: Grant) -> None:
        """Hold blocks from now on, until they are freed; see `Connect`."""

    def expect(self, request_id: str, handoff: Handoff) -> None:
        """A request has come whose blocks will be fetched: have them held until then.

        `fetch` or `drop` must follow.
        """

    async def fetch(self, load: Load) -> Loaded | FailedLoad:
        """Fill the blocks of a load; when this returns nothing is written to them any more."""

    def drop(self, request_id: str) -> None:
        """Nobody waits for this request any more: give its blocks up, fetched or not.

        A fetch under way ends soon; requests that nobody expected are ignored.
        """

    def forgo(self, handoff: Handoff) -> None:
        """Nobody here will read these blocks: have them freed, unless others may read them."""

    def close(self) -> None:
        """End all; may block, so not in the loop. All grants have been freed when it returns.

        Raises:
            RuntimeError: Something does not end, so memory may still be read or written.
        """


Connect = Callable[[str, Callable[[Freed], None]], Transfer]
"""Begin, under a generation; the callback is called once for each grant that ends, in any thread.

Raises `OSError` where no address can be had to listen at.
"""
