"""One simulated rank in real time: its core is stepped, its loads fetched, its events sent.

**Theory of operation**

One task steps the core and sleeps as long as the step would take. A step's outputs go to whoever
put the request in, through a callback, in the same turn of the event loop that ended the step. An
idle rank sleeps until it is told something, or until a lease runs out. Time is scaled by `speed`;
everything in the core, leases included, is in simulated seconds.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from transload_engine.core.engine_core import EngineCore
from transload_engine.core.events import EventForm
from transload_engine.core.handoff import Handoff
from transload_engine.core.scheduler import Load
from transload_engine.server.faults import Faults
from transload_engine.server.peers import Peers, Verb
from transload_engine.server.publisher import EventPublisher
from transload_engine.server.rank import Rank

CATCH_UP_S: Final = 0.005
"""A step that begins later than planned is made up for if it is no later than this: timers have
steps of a millisecond. A process that was starved for longer does not hurry after it."""

RENEWALS_PER_LEASE: Final = 6
"""As in vLLM's connector: `kv_lease_duration // 6`."""


class SimulatedRank(Rank[EngineCore]):
    """See the module.

    Args:
        core: Stepped by this rank alone.
        number: Data-parallel rank.
        peers: The way to other engines.
        faults: Shared by the engine's ranks; read at each step.
        publisher: Of this rank's events; None for none.
        form: Of the events.
        speed: Simulated seconds in a real one.
    """

    def __init__(
        self,
        core: EngineCore,
        number: int,
        peers: Peers,
        faults: Faults,
        publisher: EventPublisher | None,
        form: EventForm,
        speed: float,
    ) -> None:
        super().__init__(core, number, publisher, form)
        self._peers = peers
        self._faults = faults
        self._speed = speed
        self._began_s = time.monotonic()

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return (time.monotonic() - self._began_s) * self._speed

    def start(self) -> None:
        """Begin to step, until `close`."""
        self._spawn(self._step_on())
        self._spawn(self._renew_leases())

    def let_go(self, request_id: str, unread: Handoff | None) -> None:
        """See `Rank`."""
        if unread is not None:
            self.give_up(unread)

    def give_up(self, handoff: Handoff) -> None:
        """See `Rank`."""
        self._spawn(self._end(handoff))

    def answer(self, verb: Verb, engine_id: str, request_id: str) -> Sequence[int] | bool | None:
        """See `LeaseHolder`."""
        if self._faults.hangs:
            return None
        if verb is not Verb.END:
            tokens = self.core.read_lease(engine_id, request_id, self.now)
            return tokens is not None if verb is Verb.RENEW else tokens
        self.core.expire(self.now)
        self._told.set()
        return engine_id == self.core.origin.engine_id and self.core.end_lease(request_id)

    def fail(self) -> None:
        """See `Rank`."""
        self._faults.refuses = True

    async def _step_on(self) -> None:
        due_s = time.monotonic()
        while True:
            duration_s = None if self._faults.stalls else self._step()
            if duration_s is None:
                await self._be_told()
                due_s = time.monotonic()
                continue
            late_s = time.monotonic() - due_s
            due_s += duration_s + (late_s if late_s > CATCH_UP_S else 0.0)
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))

    def _step(self) -> float | None:
        """One step; its real duration."""
        self.core.expire(self.now)
        step = self.core.step(self.now)
        if self.publisher is not None:
            self.publisher.drops = self._faults.drops_events
            self.publisher.keeps = not self._faults.skips_replay
        self._publish(step.events)
        for load in step.loads:
            self._spawn(self._fetch(load))
        for output in step.outputs:
            self._deliver(output)
        if step.duration_s is None:
            return None
        return step.duration_s * self._faults.slow_factor / self._speed

    async def _be_told(self) -> None:
        """Sleep until something has changed, or a lease runs out."""
        expiry_s = self.core.leases.next_expiry_s
        wait_s = None if expiry_s is None else max(expiry_s - self.now, 0.001) / self._speed
        try:
            async with asyncio.timeout(wait_s):
                await self._told.wait()
        except TimeoutError:
            self.core.expire(self.now)
        self._told.clear()

    def wake(self) -> None:
        """Faults have changed: look again."""
        self._told.set()

    async def _fetch(self, load: Load) -> None:
        tokens = await self._peers.read(load.handoff)
        if tokens is not None:
            await asyncio.sleep(load.duration_s * self._faults.slow_factor / self._speed)
        was_held = await self._peers.end(load.handoff)
        num_bytes = load.num_blocks * self.core.settings.profile.block_bytes
        self.core.end_load(load.request_id, tokens if was_held else None, num_bytes)
        self._told.set()

    async def _end(self, handoff: Handoff) -> None:
        await self._peers.end(handoff)

    async def _renew_leases(self) -> None:
        """Keep the blocks of requests that wait for room here; their engines would free them."""
        pause_s = self.core.settings.lease_s / RENEWALS_PER_LEASE / self._speed
        while True:
            await asyncio.sleep(pause_s)
            for handoff in self.core.unread_handoffs:
                await self._peers.renew(handoff)
