"""The rank of an engine whose tokens a model computes.

**Theory of operation**

One task composes steps and has each computed in a thread of its own, so that requests are read,
answered and aborted while the model works. The core is touched by the event loop alone; the thread
sees a step's chunks, which stay as they are until the step has ended. An idle rank sleeps until it
is told something. A runner that fails ends the rank: all who wait get an error, and whoever comes
later is refused.

Each load is a task of its own beside the steps. Blocks are held for others before the answer that
says so is told; when nobody reads them any more, a thread of the transfer says so, and the loop
gives them back.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from transload_abi.wire.ledger import Freed
from transload_engine.core.events import EventForm
from transload_engine.core.handoff import Handoff
from transload_engine.core.model_core import ModelCore
from transload_engine.core.request import Ask, Finish
from transload_engine.core.runner import Runner
from transload_engine.core.scheduler import Load
from transload_engine.core.serving import Output
from transload_engine.core.transfers import FailedLoad, LoadProblem
from transload_engine.server.kv_transfer import Connect
from transload_engine.server.publisher import EventPublisher
from transload_engine.server.rank import Rank, Receiver

_log = logging.getLogger(__name__)


class ModelRank(Rank[ModelCore]):
    """See the module.

    Args:
        core: Stepped by this rank alone.
        runner: Called in one thread, by this rank alone.
        connect: The way to other engines.
        publisher: Of events; None for none.
        form: Of the events.

    Raises:
        OSError: No address can be had for others to read at.
    """

    def __init__(
        self,
        core: ModelCore,
        runner: Runner,
        connect: Connect,
        publisher: EventPublisher | None,
        form: EventForm,
    ) -> None:
        super().__init__(core, 0, publisher, form)
        self.is_dead = False
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._freed: deque[Freed] = deque()
        self._transfer = connect(core.origin.engine_id, self._hear_freed)
        core.origin = replace(core.origin, host=self._transfer.host, port=self._transfer.port)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runner")

    def start(self) -> None:
        """Begin to step, until `close`."""
        self._spawn(self._step_on())

    async def close(self) -> None:
        """Stop, once the step under way is computed; what was asked gets no more outputs.

        Raises:
            Exception: What had ended this rank before.
        """
        # Reads end with their client, and so do the tasks that wait for them.
        closing = asyncio.create_task(asyncio.to_thread(self._transfer.close))
        try:
            await super().close()
        finally:
            await closing
            await asyncio.to_thread(self._thread.shutdown)

    def ask(self, request_id: str, ask: Ask, receiver: Receiver) -> None:
        """See `Rank`."""
        super().ask(request_id, ask, receiver)
        if ask.handoff is not None:
            self._transfer.expect(request_id, ask.handoff)

    def let_go(self, request_id: str, unread: Handoff | None) -> None:
        """See `Rank`. Others may have shares of the handoff, so this request's alone is ended."""
        self._transfer.drop(request_id)

    def give_up(self, handoff: Handoff) -> None:
        """See `Rank`."""
        self._transfer.forgo(handoff)

    def fail(self) -> None:
        """See `Rank`."""
        self.is_dead = True
        _log.error("a step has failed; all requests are refused", exc_info=self._failure)
        for request_id in list(self._receivers):
            self._deliver(Output(request_id, finish=Finish.ERROR))

    async def _step_on(self) -> None:
        while True:
            chunks = self.core.begin(time.monotonic())
            for load in self.core.take_loads():
                self._spawn(self._load(load))
            for output in self.core.take_ended():
                self._deliver(output)
            if not chunks:
                await self._told.wait()
                self._told.clear()
                continue
            chosen = await self._loop.run_in_executor(self._thread, self._runner.run, chunks)
            step = self.core.end(chosen, time.monotonic())
            for grant in self.core.take_grants():
                self._transfer.grant(grant)
            self._publish(step.events)
            for output in step.outputs:
                self._deliver(output)

    async def _load(self, load: Load) -> None:
        outcome = await self._transfer.fetch(load)
        if isinstance(outcome, FailedLoad) and outcome.problem is not LoadProblem.ABORTED:
            then = "fails" if self.core.settings.fails_with_load else "computes its prompt here"
            what = f"{outcome.problem} ({outcome.path})" if outcome.path else outcome.problem
            _log.warning("%s %s: %s; %s", load.request_id, then, what, outcome.message)
        self.core.end_load(load, outcome)
        self._told.set()

    def _hear_freed(self, freed: Freed) -> None:
        """In a thread of the transfer's."""
        self._freed.append(freed)
        # Behind the loop's end nobody counts blocks.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take_freed)

    def _take_freed(self) -> None:
        while self._freed:
            freed = self._freed.popleft()
            self.core.end_lease(freed.handoff, freed.lease, freed.end)
        self._told.set()
