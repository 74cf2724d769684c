"""What each destination has been promised: reservations, released once, bound to a generation.

A destination is one data-parallel rank of an engine. Nothing but the request that made a
reservation changes it: no timer, no health check. An engine that is replaced starts at zero, and
what is done for its predecessor falls away.

A leg that will compute its prompt counts as prefilling from its reservation until `prefilled`,
then as decoding until `release`. A leg whose prompt is computed elsewhere has nothing to prefill;
it counts as decoding from `prefilled` on, too, and until then as promised.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from transload_router.core.types import DestinationKey, Engine


@dataclass(slots=True)
class EngineLoad:
    """Live load of one destination's generation.

    Attributes:
        num_requests: Legs reserved and not released.
        num_tokens: Prompt and expected answer of all of them.
        num_prefilling: Legs that have a prompt to compute here and have not said `prefilled`.
        num_prefill_tokens: Uncached prompt tokens of those.
        prefill_area: Sum of uncached tokens times the mean context they attend to.
        num_decoding: Legs past their first token.
        num_context_tokens: Context of those.
        progressed_s: When a prefill last ended here.
        decoding_s: Integral of `num_decoding` over time, for averages.
        context_token_s: Integral of `num_context_tokens` over time.
        prefilled_tokens: Uncached tokens of all prefills that ended here.
        prefilled_area: The same of their areas.
        num_prefilled: How many they were.
        queue: Legs that prefill, oldest first.
        version: Changes with every figure; negative once the load is no longer counted.
    """

    generation: int
    num_requests: int = 0
    num_tokens: int = 0
    num_prefilling: int = 0
    num_prefill_tokens: int = 0
    prefill_area: int = 0
    num_decoding: int = 0
    num_context_tokens: int = 0
    progressed_s: float = 0.0
    decoding_s: float = 0.0
    context_token_s: float = 0.0
    prefilled_tokens: int = 0
    prefilled_area: int = 0
    num_prefilled: int = 0
    queue: dict["Reservation", None] = field(default_factory=dict, repr=False)
    version: int = 0
    _counted_until_s: float = field(default=0.0, repr=False)

    def count_until(self, now: float) -> None:
        """Carry the integrals forward; an earlier time changes nothing."""
        elapsed = now - self._counted_until_s
        if elapsed > 0.0:
            self.decoding_s += self.num_decoding * elapsed
            self.context_token_s += self.num_context_tokens * elapsed
            self._counted_until_s = now


class Reservation:
    """A leg's share of a destination; every method is safe to call more than once.

    Attributes:
        since_s: When it was made.
        num_tokens: Prompt and expected answer.
        num_prefill_tokens: Prompt tokens to compute here.
        prefill_area: Those times the mean context they attend to.
    """

    __slots__ = (
        "_load",
        "_num_context_tokens",
        "_phase",
        "num_prefill_tokens",
        "num_tokens",
        "prefill_area",
        "since_s",
    )

    def __init__(
        self,
        load: EngineLoad,
        num_tokens: int,
        num_prefill_tokens: int = 0,
        num_context_tokens: int = 0,
        now: float = 0.0,
    ) -> None:
        self._load: EngineLoad | None = load
        self.num_tokens = num_tokens
        self._num_context_tokens = num_context_tokens
        self.num_prefill_tokens = num_prefill_tokens
        self.prefill_area = area(num_context_tokens - num_prefill_tokens, num_prefill_tokens)
        self.since_s = now
        self._phase = _PROMISED
        load.version += 1
        load.num_requests += 1
        load.num_tokens += num_tokens
        if num_prefill_tokens > 0:
            self._phase = _PREFILLING
            load.num_prefilling += 1
            load.num_prefill_tokens += num_prefill_tokens
            load.prefill_area += self.prefill_area
            load.queue[self] = None

    def prefilled(self, now: float = 0.0) -> None:
        """The prompt is computed, the first token is known: from here on it decodes."""
        load = self._load
        if load is None or self._phase is _DECODING:
            return
        if self._phase is _PREFILLING:
            self._leave_queue(load, now)
            load.prefilled_tokens += self.num_prefill_tokens
            load.prefilled_area += self.prefill_area
            load.num_prefilled += 1
        load.count_until(now)
        load.version += 1
        self._phase = _DECODING
        load.num_decoding += 1
        load.num_context_tokens += self._num_context_tokens

    @property
    def is_released(self) -> bool:
        """Whether it was given back."""
        return self._load is None

    @property
    def load(self) -> EngineLoad | None:
        """Where it counts; None once it was released or its engine is gone or replaced."""
        load = self._load
        return load if load is not None and load.version >= 0 else None

    @property
    def is_prefilling(self) -> bool:
        """Whether it has a prompt to compute, and that is not done."""
        return self._load is not None and self._phase is _PREFILLING

    def release(self, now: float = 0.0) -> None:
        """Give the share back, in whatever phase."""
        load, self._load = self._load, None
        if load is None:
            return
        load.version += 1
        load.num_requests -= 1
        load.num_tokens -= self.num_tokens
        if self._phase is _PREFILLING:
            self._leave_queue(load, now)
        elif self._phase is _DECODING:
            load.count_until(now)
            load.num_decoding -= 1
            load.num_context_tokens -= self._num_context_tokens

    def _leave_queue(self, load: EngineLoad, now: float) -> None:
        del load.queue[self]
        load.num_prefilling -= 1
        load.num_prefill_tokens -= self.num_prefill_tokens
        load.prefill_area -= self.prefill_area
        load.progressed_s = max(load.progressed_s, now)


# Far enough below zero that late releases never bring it back.
_RETIRED = -(1 << 62)

_PROMISED, _PREFILLING, _DECODING = "promised", "prefilling", "decoding"


def area(num_cached_tokens: int, num_uncached_tokens: int) -> int:
    """Uncached tokens times the mean context they attend to."""
    return num_uncached_tokens * (max(0, num_cached_tokens) + num_uncached_tokens // 2)


class Load:
    """The load of all destinations."""

    def __init__(self) -> None:
        self._loads: dict[str, dict[int, EngineLoad]] = {}

    def of(self, engine: Engine, rank: int = 0) -> EngineLoad:
        """The live figures; a newer generation starts at zero, an older one is not seen."""
        ranks = self._loads.get(engine.id)
        if ranks is None:
            ranks = self._loads[engine.id] = {}
        load = ranks.get(rank)
        if load is not None and load.generation == engine.generation:
            return load
        if any(other.generation > engine.generation for other in ranks.values()):
            return EngineLoad(engine.generation)
        for old in [old for old, it in ranks.items() if it.generation < engine.generation]:
            ranks.pop(old).version = _RETIRED
        load = ranks[rank] = EngineLoad(engine.generation)
        return load

    def reserve(
        self,
        engine: Engine,
        num_tokens: int,
        rank: int = 0,
        *,
        num_prefill_tokens: int = 0,
        num_context_tokens: int = 0,
        now: float = 0.0,
    ) -> Reservation:
        """Count a leg against a destination until its reservation is released.

        Args:
            engine: The engine of the leg.
            num_tokens: Prompt and expected answer.
            rank: The data-parallel rank.
            num_prefill_tokens: Uncached tokens of the prompt, 0 if it is computed elsewhere.
            num_context_tokens: The whole prompt.
            now: Monotonic seconds.
        """
        load = self.of(engine, rank)
        return Reservation(load, num_tokens, num_prefill_tokens, num_context_tokens, now)

    def of_engine(self, engine: Engine) -> tuple[int, int]:
        """Legs and tokens reserved on all ranks of an engine's generation."""
        live = [
            load
            for load in self._loads.get(engine.id, {}).values()
            if load.generation == engine.generation
        ]
        return sum(load.num_requests for load in live), sum(load.num_tokens for load in live)

    def forget(self, engine_id: str) -> None:
        """Drop a gone engine's figures; what late legs do then changes nothing that is seen."""
        for load in self._loads.pop(engine_id, {}).values():
            load.version = _RETIRED

    def num_requests(self) -> int:
        """Legs in flight on all destinations."""
        return sum(load.num_requests for _key, load in self.items())

    def items(self) -> Iterator[tuple[DestinationKey, EngineLoad]]:
        """All destinations that were ever asked for and not forgotten."""
        for engine_id, ranks in self._loads.items():
            for rank, load in ranks.items():
                yield (engine_id, rank), load
