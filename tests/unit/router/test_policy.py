"""Least reserved tokens, ties by chance."""

import random
from collections import Counter

import pytest

from transload_router.core.load import EngineLoad
from transload_router.core.policy import Candidate, LeastReserved, LegRequest, Policy
from transload_router.core.types import Address, Engine, Role

REQUEST = LegRequest(Role.DECODE, "m", 100, 50)


def candidates(*tokens: int) -> list[Candidate]:
    return [
        Candidate(
            Engine(f"d{index}", Role.DECODE, Address("h", index + 1)),
            EngineLoad(0, num_requests=1, num_tokens=count),
        )
        for index, count in enumerate(tokens)
    ]


def chosen(chance: float, *tokens: int) -> str | None:
    policy: Policy = LeastReserved(lambda: chance)
    engine = policy.choose(REQUEST, candidates(*tokens))
    return engine.id if engine else None


def test_nobody_and_only_one() -> None:
    assert chosen(0.5) is None
    assert chosen(0.999, 10**9) == "d0"


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999_999])
def test_least_tokens_not_least_requests(chance: float) -> None:
    assert chosen(chance, 5, 3, 4) == "d1"
    few = Candidate(Engine("few", Role.DECODE, Address("h", 1)), EngineLoad(0, 1, 100))
    many = Candidate(Engine("many", Role.DECODE, Address("h", 2)), EngineLoad(0, 9, 99))
    engine = LeastReserved(lambda: chance).choose(REQUEST, [few, many])
    assert engine is not None
    assert engine.id == "many"


@pytest.mark.parametrize(
    ("chance", "expected"),
    [(0.0, "d0"), (0.33, "d0"), (0.34, "d2"), (0.7, "d3"), (0.9999999, "d3")],
)
def test_ties_by_chance(chance: float, expected: str) -> None:
    assert chosen(chance, 3, 5, 3, 3) == expected


def test_ties_spread() -> None:
    """Sequential light load must not all go to one engine."""
    policy = LeastReserved(random.Random(1).random)
    idle = candidates(0, 0, 0, 0)
    picks = Counter(
        engine.id for _ in range(1_000) if (engine := policy.choose(REQUEST, idle)) is not None
    )
    assert sorted(picks) == ["d0", "d1", "d2", "d3"]
    assert min(picks.values()) > 200


def test_chooses_without_changing_load() -> None:
    field = candidates(1, 2)
    before = [(one.load.num_requests, one.load.num_tokens) for one in field]
    LeastReserved(lambda: 0.0).choose(REQUEST, field)
    assert [(one.load.num_requests, one.load.num_tokens) for one in field] == before
