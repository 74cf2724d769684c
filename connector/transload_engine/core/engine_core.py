"""A simulated engine's core (one data-parallel rank): tokens from a hash, time from a profile.

After vLLM 0.32.0's `v1/core/sched/scheduler.py` and the NIXL connector's scheduler side. Knows no
clock and no other engine: whoever drives it (the server in real time, a simulation in its own)
calls `step`, waits for the step's duration, and calls it again.

**Rules**

* `step(now)` ends the step before, whose outputs and events are visible from now on, and begins
  the next. Without a duration there is nothing to begin until something else is called.
* With asynchronous scheduling, vLLM's default, a step is composed before the outcome of the one
  before is known; so a request's blocks are taken one step sooner, and events say so.
* Events are handed out with the step that ends, never by an idle engine.
"""

from collections.abc import Sequence
from typing import Any

from transload_engine.core.blocks import Block
from transload_engine.core.events import Event
from transload_engine.core.handoff import Handoff, Leases, Origin
from transload_engine.core.request import Generator, Request, Status
from transload_engine.core.runner import Chosen
from transload_engine.core.scheduler import Scheduled
from transload_engine.core.serving import Output, ServingCore, Step
from transload_engine.core.settings import CoreSettings
from transload_engine.core.timing import BatchSize


class EngineCore(ServingCore):
    """See the module.

    Args:
        settings: Sizes, times and policies.
        origin: What others read blocks under; an engine that is restarted has a new one.
        vocabulary: Ids that answers are made of, none of them `eos`.
        eos: Id of the token that ends an answer.
    """

    def __init__(
        self, settings: CoreSettings, origin: Origin, vocabulary: Sequence[int], eos: int
    ) -> None:
        super().__init__(settings, origin, eos)
        self.leases = Leases(settings.lease_s)
        self._vocabulary = vocabulary

    @property
    def unread_handoffs(self) -> list[Handoff]:
        """Handoffs whose blocks were asked for and are not here; their leases must be renewed."""
        return [
            request.ask.handoff
            for request in self._requests.values()
            if request.ask.handoff is not None
            and (request.has_to_load or request.status is Status.LOADING)
        ]

    def step(self, now: float) -> Step:
        """See the module's rules."""
        before, self._batch = self._batch, []
        outputs, self._ended = self._ended, []
        events: list[Event] = []
        is_async = self.settings.schedules_async
        if is_async:
            self._batch = self._scheduler.schedule(now)
        if before:
            for scheduled in before:
                self._gain(scheduled, outputs, now)
            events = self._cache.pool.take_events()
        if not self._batch:
            self._batch = self._scheduler.schedule(now)
        loads, self._scheduler.loads = self._scheduler.loads, []
        return Step(events, outputs, loads, self._duration_s())

    def end_load(self, request_id: str, tokens: Sequence[int] | None, num_bytes: int = 0) -> None:
        """A load has ended.

        Args:
            request_id: As in the `Load`.
            tokens: What the blocks were computed from; None if they could not be had.
            num_bytes: That were moved.
        """
        request = self._requests[request_id]
        has_failed = tokens is None or len(tokens) < request.num_prompt
        if has_failed:
            self.counters.num_failed_loads += 1
        else:
            self.counters.num_loads += 1
            self.counters.loaded_bytes += num_bytes
        if request.status is Status.FINISHED:
            self._free(request)
        elif tokens is None or has_failed:
            self._recover(request)
        else:
            own = request.num_stored * request.block_size
            request.generator = self._generator(
                request, [*request.tokens[:own], *tokens[own : request.num_prompt]]
            )
            request.status = Status.LOADED
            self._scheduler.loaded.append(request)

    def read_lease(self, engine_id: str, request_id: str, now: float) -> Sequence[int] | None:
        """What blocks that are held for others were computed from; None if they are not (here)."""
        self.expire(now)
        return self.leases.read(request_id, now) if engine_id == self.origin.engine_id else None

    def end_lease(self, request_id: str) -> bool:
        """Others have read the blocks, or never will; false if they were not held any more."""
        blocks = self.leases.end(request_id)
        self._cache.pool.release(blocks or [])
        return blocks is not None

    def expire(self, now: float) -> None:
        """Take back what nobody read in time."""
        self._cache.pool.release(self.leases.expire(now))

    def _gain(self, scheduled: Scheduled, outputs: list[Output], now: float) -> None:
        request = scheduled.request
        is_void = scheduled.num_preemptions != request.num_preemptions
        if not scheduled.gains_token or request.status is Status.FINISHED:
            return
        if is_void and request.ask.hands_off:
            return
        if request.generator is None:
            request.generator = self._generator(request, request.tokens)
        outputs.append(self._give(scheduled, Chosen(request.generator.next()), now))

    def _hand_off(self, request: Request, blocks: list[Block], now: float) -> dict[str, Any]:
        tokens = request.tokens[: request.num_computed]
        self.leases.grant(request.request_id, blocks, tokens, now)
        return self._params(request, blocks[: self._cache.blocks_for(len(tokens))])

    def _generator(self, request: Request, tokens: Sequence[int]) -> Generator:
        mean = self.settings.mean_answer_tokens
        return Generator(tokens, request.ask.choice, self._vocabulary, self._eos, mean)

    def _duration_s(self) -> float | None:
        if not self._batch:
            return None
        size = BatchSize()
        for each in self._batch:
            computed = each.request.num_computed - each.num_new
            size.add(computed, each.num_new, is_prefill=each.is_prefill)
        return size.seconds(self.settings.profile)
