"""A `Transfer` that moves nothing: what it was asked for is kept, and a test says how loads end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from transload_abi.wire.ledger import Freed
from transload_engine.core.handoff import Grant, Handoff
from transload_engine.core.scheduler import Load
from transload_engine.core.transfers import FailedLoad, Loaded, LoadProblem

ABORTED = FailedLoad(LoadProblem.ABORTED, "dropped")


@dataclass
class FakeTransfer:
    """See the module.

    Attributes:
        generation: Of the engine.
        on_freed: Its callback.
        outcome: From a load to how it ends; may fill what stands for the blocks.
        gate: Loads wait for it, unless they are dropped.
        log: What was asked for, in order.
    """

    generation: str
    on_freed: Callable[[Freed], None]
    outcome: Callable[[Load], Loaded | FailedLoad] = lambda _: Loaded(64, 0.5)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    log: list[tuple[str, object]] = field(default_factory=list)
    host: str = "127.0.0.1"
    port: int = 7001
    dropped: dict[str, asyncio.Event] = field(default_factory=dict)
    held: list[Grant] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def grant(self, grant: Grant) -> None:
        self.log.append(("grant", grant))
        self.held.append(grant)

    def expect(self, request_id: str, handoff: Handoff) -> None:
        self.log.append(("expect", handoff))

    async def fetch(self, load: Load) -> Loaded | FailedLoad:
        self.log.append(("fetch", load))
        dropped = self.dropped[load.request_id] = asyncio.Event()
        waits = [asyncio.create_task(each.wait()) for each in (self.gate, dropped)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return ABORTED if dropped.is_set() else self.outcome(load)

    def drop(self, request_id: str) -> None:
        if request_id in self.dropped:
            self.dropped[request_id].set()

    def forgo(self, handoff: Handoff) -> None:
        self.log.append(("forgo", handoff))

    def free(self, grant: Grant, end: str = "ended") -> None:
        """Tell the engine that nobody reads these blocks any more."""
        self.held.remove(grant)
        self.on_freed(Freed(grant.handoff, grant.lease, end, 1))  # type: ignore[arg-type]

    def close(self) -> None:
        self.log.append(("close", None))
        for grant in list(self.held):
            self.free(grant, "forgone")
