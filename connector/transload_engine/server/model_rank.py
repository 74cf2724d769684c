"""The rank of an engine whose tokens a model computes.

**Theory of operation**

One task composes steps and has each computed in a thread of its own, so that requests are read,
answered and aborted while the model works. The core is touched by the event loop alone; the thread
sees a step's chunks, which stay as they are until the step has ended. An idle rank sleeps until it
is told something. A runner that fails ends the rank: all who wait get an error, and whoever comes
later is refused.
"""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from transload_engine.core.events import EventForm
from transload_engine.core.handoff import Handoff
from transload_engine.core.model_core import ModelCore
from transload_engine.core.request import Finish
from transload_engine.core.runner import Runner
from transload_engine.core.serving import Output
from transload_engine.server.publisher import EventPublisher
from transload_engine.server.rank import Rank

_log = logging.getLogger(__name__)


class ModelRank(Rank[ModelCore]):
    """See the module.

    Args:
        core: Stepped by this rank alone.
        runner: Called in one thread, by this rank alone.
        publisher: Of events; None for none.
        form: Of the events.
    """

    def __init__(
        self, core: ModelCore, runner: Runner, publisher: EventPublisher | None, form: EventForm
    ) -> None:
        super().__init__(core, 0, publisher, form)
        self.is_dead = False
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runner")

    def start(self) -> None:
        """Begin to step, until `close`."""
        self._spawn(self._step_on())

    async def close(self) -> None:
        """Stop, once the step under way is computed; what was asked gets no more outputs.

        Raises:
            Exception: What had ended this rank before.
        """
        try:
            await super().close()
        finally:
            await asyncio.to_thread(self._thread.shutdown)

    def give_up(self, handoff: Handoff) -> None:
        """No request has a handoff here: they are refused."""
        raise AssertionError(f"a handoff of {handoff.engine_id} came to an engine that takes none")

    def fail(self) -> None:
        """See `Rank`."""
        self.is_dead = True
        _log.error("a step has failed; all requests are refused", exc_info=self._failure)
        for request_id in list(self._receivers):
            self._deliver(Output(request_id, finish=Finish.ERROR))

    async def _step_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            chunks = self.core.begin(time.monotonic())
            if not chunks:
                await self._told.wait()
                self._told.clear()
                continue
            chosen = await loop.run_in_executor(self._thread, self._runner.run, chunks)
            step = self.core.end(chosen, time.monotonic())
            self._publish(step.events)
            for output in step.outputs:
                self._deliver(output)
