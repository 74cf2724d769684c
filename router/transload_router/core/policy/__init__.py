"""Who takes a request: engines for both legs, or one for all of it."""

from transload_router.core.policy.cost import CostPolicy
from transload_router.core.policy.pricing import Weights
from transload_router.core.policy.registry import POLICIES, make_policy
from transload_router.core.policy.types import (
    Ask,
    Chance,
    Decision,
    Destination,
    FleetView,
    Policy,
    Reason,
    Row,
    Terms,
)

__all__ = [
    "POLICIES",
    "Ask",
    "Chance",
    "CostPolicy",
    "Decision",
    "Destination",
    "FleetView",
    "Policy",
    "Reason",
    "Row",
    "Terms",
    "Weights",
    "make_policy",
]
