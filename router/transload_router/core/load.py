"""What each engine has been promised: reservations, released once, bound to a generation.

Nothing but the request that made a reservation releases it: no timer, no health check. An
engine that is replaced starts at zero, and releases for its predecessor fall away.
"""

from dataclasses import dataclass

from transload_router.core.types import Engine


@dataclass(slots=True)
class EngineLoad:
    """Live load of one engine generation."""

    generation: int
    num_requests: int = 0
    num_tokens: int = 0


class Reservation:
    """A leg's share of an engine; `release` is safe to call more than once."""

    __slots__ = ("_load", "_num_tokens")

    def __init__(self, load: EngineLoad, num_tokens: int) -> None:
        self._load: EngineLoad | None = load
        self._num_tokens = num_tokens
        load.num_requests += 1
        load.num_tokens += num_tokens

    def release(self) -> None:
        """Give the share back."""
        load, self._load = self._load, None
        if load is not None:
            load.num_requests -= 1
            load.num_tokens -= self._num_tokens


class Load:
    """The load of all engines."""

    def __init__(self) -> None:
        self._loads: dict[str, EngineLoad] = {}

    def of(self, engine: Engine) -> EngineLoad:
        """The live figures; a newer generation starts at zero, an older one is not seen."""
        load = self._loads.get(engine.id)
        if load is not None and load.generation > engine.generation:
            return EngineLoad(engine.generation)
        if load is None or load.generation < engine.generation:
            load = self._loads[engine.id] = EngineLoad(engine.generation)
        return load

    def reserve(self, engine: Engine, num_tokens: int) -> Reservation:
        """Count a leg against an engine until its reservation is released."""
        return Reservation(self.of(engine), num_tokens)

    def forget(self, engine_id: str) -> None:
        """Drop a gone engine's figures; late releases then change nothing that is seen."""
        self._loads.pop(engine_id, None)

    def num_requests(self) -> int:
        """Legs in flight on all engines."""
        return sum(load.num_requests for load in self._loads.values())
