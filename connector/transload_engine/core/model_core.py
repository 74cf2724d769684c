"""The core of an engine whose tokens a model computes: what is computed next, and what came of it.

Knows no clock, no thread and no model: whoever drives it takes a step's chunks from `begin`, has a
`Runner` compute them, and gives what was chosen to `end`.

**Rules**

* Steps alternate: `begin`, then `end`, and nothing is scheduled between.
* Requests may be added and aborted at any time. The blocks of one that is aborted while it is
  computed are freed when the step ends, since until then the runner writes to them.
* A chunk may find KV in its blocks that a chunk before it in the same step computes.
"""

from collections.abc import Sequence

from transload_engine.core.handoff import Origin
from transload_engine.core.request import Request, Status
from transload_engine.core.runner import Chosen, Chunk
from transload_engine.core.scheduler import Scheduled
from transload_engine.core.serving import ServingCore, Step
from transload_engine.core.settings import CoreSettings


class ModelCore(ServingCore):
    """See the module.

    Args:
        settings: Sizes and policies.
        origin: Who this engine is to others.
        eos: Id of the token that ends an answer.

    Raises:
        ValueError: The settings ask for what is only simulated, or for hashes that cannot be
            computed here.
    """

    def __init__(self, settings: CoreSettings, origin: Origin, eos: int) -> None:
        if settings.schedules_async or settings.has_connector:
            raise ValueError("a model's engine neither schedules ahead nor hands off")
        super().__init__(settings, origin, eos)

    def begin(self, now: float) -> list[Chunk]:
        """Compose the next step; empty if there is nothing to compute, and then no `end` follows.

        The chunks and what they refer to stay as they are until `end`.
        """
        self._batch = self._scheduler.schedule(now)
        return [self._chunk(scheduled) for scheduled in self._batch]

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
