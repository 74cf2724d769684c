"""What a data-parallel rank of either kind does: requests in, outputs and events out.

Knows not how its core is stepped: that is what its kinds differ in.
"""

import abc
import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from transload_engine.core.events import Event, EventForm, encode
from transload_engine.core.handoff import Handoff
from transload_engine.core.request import Ask
from transload_engine.core.serving import Output, ServingCore
from transload_engine.server.publisher import EventPublisher

Receiver = Callable[[Output], None]
Core = TypeVar("Core", bound=ServingCore)


class Rank(abc.ABC, Generic[Core]):
    """See the module.

    Args:
        core: Stepped by this rank alone.
        number: Data-parallel rank.
        publisher: Of this rank's events; None for none.
        form: Of the events.
    """

    def __init__(
        self, core: Core, number: int, publisher: EventPublisher | None, form: EventForm
    ) -> None:
        self.core = core
        self.number = number
        self.publisher = publisher
        self._form = form
        self._receivers: dict[str, Receiver] = {}
        self._told = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def close(self) -> None:
        """Stop at once; what was asked gets no more outputs.

        Raises:
            Exception: What had ended this rank before, a defect of ours.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.publisher is not None:
            self.publisher.close()
        if self._failure is not None:
            raise self._failure

    def ask(self, request_id: str, ask: Ask, receiver: Receiver) -> None:
        """Put a request in; the receiver gets its outputs, the last of which has a `finish`."""
        self.core.add_request(request_id, ask)
        self._receivers[request_id] = receiver
        self._told.set()

    def abort(self, request_id: str) -> None:
        """Nobody waits for a request any more; its receiver hears no more of it."""
        self._receivers.pop(request_id, None)
        self.let_go(request_id, self.core.abort(request_id))
        self._told.set()

    @abc.abstractmethod
    def let_go(self, request_id: str, unread: Handoff | None) -> None:
        """An aborted request needs nothing of others any more; a handoff that it has not read."""

    @abc.abstractmethod
    def give_up(self, handoff: Handoff) -> None:
        """Tell where a handoff comes from that no request will read it."""

    @abc.abstractmethod
    def fail(self) -> None:
        """This rank's work has ended with a failure; it takes no step any more."""

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            self.fail()

    def _publish(self, events: list[Event]) -> None:
        if events and self.publisher is not None:
            self.publisher.publish(encode(time.time(), events, self.number, self._form))

    def _deliver(self, output: Output) -> None:
        receiver = self._receivers.get(output.request_id)
        if receiver is None:
            return
        if output.finish is not None:
            del self._receivers[output.request_id]
        receiver(output)
