"""The core of an engine whose tokens a model computes: what is computed next, and what came of it.

Knows no clock, no thread and no model: whoever drives it takes a step's chunks from `begin`, has a
`Runner` compute them, and gives what was chosen to `end`.

**Rules**

* Steps alternate: `begin`, then `end`, and nothing is scheduled between.
* Requests may be added and aborted at any time. The blocks of one that is aborted while it is
  computed are freed when the step ends, since until then the runner writes to them.
* A chunk may find KV in its blocks that a chunk before it in the same step computes.
* Loads are begun by `begin`, and each is ended by `end_load`. Blocks that one fills hold nothing,
  and belong to nobody else, before that.
* Grants are made by `end`. Their blocks are nobody else's until `end_lease`; a grant must be
  carried out before the output with its handoff is told.
"""

from collections.abc import Callable, Sequence
from typing import Any

from transload_abi.wire.limits import MAX_NAME_CHARS
from transload_engine.core.blocks import Block
from transload_engine.core.handoff import Grant, Origin, prompt_digest
from transload_engine.core.request import Request, Status
from transload_engine.core.runner import Chosen, Chunk
from transload_engine.core.scheduler import Load, Scheduled
from transload_engine.core.serving import Output, ServingCore, Step
from transload_engine.core.settings import CoreSettings
from transload_engine.core.transfers import FailedLoad, Loaded, Transfers


class ModelCore(ServingCore):
    """See the module.

    Args:
        settings: Sizes and policies.
        origin: Who this engine is to others; its id is also its generation.
        eos: Id of the token that ends an answer.
        draw_lease: A name that nobody can guess, each time another.

    Attributes:
        transfers: What moved to and from others.

    Raises:
        ValueError: The settings ask for what is only simulated, or for hashes that cannot be
            computed here.
    """

    def __init__(
        self, settings: CoreSettings, origin: Origin, eos: int, draw_lease: Callable[[], str]
    ) -> None:
        if settings.schedules_async:
            raise ValueError("a model's engine does not schedule ahead")
        super().__init__(settings, origin, eos)
        self.transfers = Transfers()
        self._draw_lease = draw_lease
        self._grants: list[Grant] = []
        self._held: dict[tuple[str, str], list[Block]] = {}

    @property
    def num_held(self) -> int:
        """Handoffs whose blocks are held for others."""
        return len(self._held)

    def begin(self, now: float) -> list[Chunk]:
        """Compose the next step; empty if there is nothing to compute, and then no `end` follows.

        The chunks and what they refer to stay as they are until `end`. `take_loads` has more to do.
        """
        # In a step that only puts requests back nobody is admitted, though there may be room now.
        self._batch = self._scheduler.schedule(now) or self._scheduler.schedule(now)
        return [self._chunk(scheduled) for scheduled in self._batch]

    def take_loads(self) -> list[Load]:
        """Loads that have begun since the last call."""
        loads, self._scheduler.loads = self._scheduler.loads, []
        return loads

    def take_grants(self) -> list[Grant]:
        """Handoffs that were made since the last call."""
        grants, self._grants = self._grants, []
        return grants

    def take_ended(self) -> list[Output]:
        """Ends that came of no step, since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def end(self, chosen: Sequence[Chosen | None], now: float) -> Step:
        """The step is computed.

        Args:
            chosen: As the runner returned it for what `begin` gave.
            now: Seconds.
        """
        batch, self._batch = self._batch, []
        outputs = []
        for scheduled, each in zip(batch, chosen, strict=True):
            if scheduled.request.status is Status.FINISHED:
                self._free(scheduled.request)
            elif scheduled.gains_token:
                assert each is not None, "the runner chose no token where one was asked for"
                outputs.append(self._give(scheduled, each, now))
        return Step(self._cache.pool.take_events(), outputs, [], None)

    def end_load(self, load: Load, outcome: Loaded | FailedLoad) -> None:
        """Nothing is written to the blocks of a load any more: they hold all, or nothing."""
        request = self._requests[load.request_id]
        self.transfers.count(outcome, load.num_tokens - load.num_local_tokens)
        if request.status is Status.FINISHED:
            self._free(request)
        elif isinstance(outcome, FailedLoad):
            self._recover(request)
        else:
            request.status = Status.LOADED
            self._scheduler.loaded.append(request)

    def end_lease(self, handoff: str, lease: str, end: str) -> None:
        """Nobody reads these blocks any more.

        Args:
            handoff: As in the `Grant`.
            lease: Likewise.
            end: A name of `Transfers.ends`.
        """
        self._cache.pool.release(self._held.pop((handoff, lease))[::-1])
        self.transfers.ends[end] += 1

    def _hand_off(self, request: Request, blocks: list[Block], now: float) -> dict[str, Any]:
        read = blocks[: self._cache.blocks_for(request.num_computed)]
        grant = Grant(
            # Clients choose how long ids are; what tells them apart stands at their end.
            handoff=request.request_id[-MAX_NAME_CHARS:],
            lease=self._draw_lease(),
            block_ids=[block.block_id for block in read],
            num_tokens=request.num_computed,
            num_readers=request.ask.num_readers,
            prompt=prompt_digest(request.tokens[: request.num_computed]),
        )
        self._held[grant.handoff, grant.lease] = blocks
        self._grants.append(grant)
        self.transfers.num_granted += 1
        told = self._params(request, read) | {"remote_request_id": grant.handoff}
        return told | grant.params(self.origin.engine_id)

    def _chunk(self, scheduled: Scheduled) -> Chunk:
        request = scheduled.request
        end = request.num_computed
        blocks = request.blocks[: self._cache.blocks_for(end)]
        return Chunk(
            request_id=request.request_id,
            token_ids=request.tokens,
            num_prompt=request.num_prompt,
            first=end - scheduled.num_new,
            end=end,
            block_ids=[block.block_id for block in blocks],
            sampling=request.ask.sampling if scheduled.gains_token else None,
            num_drawn=request.num_answer,
        )

    def _is_written(self, request: Request) -> bool:
        is_computed = any(scheduled.request is request for scheduled in self._batch)
        return is_computed or super()._is_written(request)
