"""Policies by the names that operators use."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from transload_router.core.cost import CostModel
from transload_router.core.load import Load
from transload_router.core.policy.cost import CostPolicy
from transload_router.core.policy.orders import (
    LeastLoaded,
    LongestPrefix,
    Order,
    RandomOrder,
    RoundRobin,
    Session,
)
from transload_router.core.policy.plain import PlainPolicy
from transload_router.core.policy.pricing import Weights
from transload_router.core.policy.types import Chance, Policy

_ORDERS: Mapping[str, Callable[[Load, Chance], Order]] = MappingProxyType(
    {
        "least-loaded": LeastLoaded,
        "round-robin": RoundRobin,
        "prefix": LongestPrefix,
        "session": Session,
        "random": RandomOrder,
    }
)
POLICIES = ("cost", *_ORDERS)


def make_policy(
    name: str, load: Load, costs: CostModel, chance: Chance, weights: Weights | None = None
) -> Policy:
    """A policy by name, one of `POLICIES`.

    Args:
        name: Which.
        load: Everybody's load; read at each choice.
        costs: Everybody's times; read at each choice.
        chance: Breaks ties.
        weights: Of `cost`; the plain rules have none.

    Raises:
        KeyError: There is no policy of this name.
    """
    if name == "cost":
        return CostPolicy(load, costs, chance, weights)
    return PlainPolicy(_ORDERS[name](load, chance), load, costs)
