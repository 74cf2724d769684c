"""Which engine takes one leg, as seen by that leg alone."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from transload_router.core.load import EngineLoad
from transload_router.core.policy.types import Chance
from transload_router.core.types import Engine, Role


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An engine that may take the leg, with its live load."""

    engine: Engine
    load: EngineLoad


class LegRequest(msgspec.Struct, frozen=True, gc=False):
    """What a policy may know of a leg."""

    role: Role
    model: str | None
    num_prompt_tokens: int
    num_answer_tokens: int


class Policy(Protocol):
    """Chooses among candidates that are all able to serve."""

    def choose(self, request: LegRequest, candidates: Sequence[Candidate]) -> Engine | None:
        """Pick one, or None if there is none. Pure but for the chance it was given."""


class LeastReserved:
    """Fewest reserved tokens, ties broken by chance."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def choose(self, request: LegRequest, candidates: Sequence[Candidate]) -> Engine | None:
        """See `Policy.choose`."""
        if len(candidates) <= 1:
            return candidates[0].engine if candidates else None
        least = min(candidate.load.num_tokens for candidate in candidates)
        tied = [one for one in candidates if one.load.num_tokens == least]
        return tied[int(self._chance() * len(tied))].engine
