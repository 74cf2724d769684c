"""Who takes a request, or one leg of it."""

from transload_router.core.policy.cost import CostPolicy
from transload_router.core.policy.legs import Candidate, LeastReserved, LegRequest, Policy
from transload_router.core.policy.pricing import Weights
from transload_router.core.policy.registry import POLICIES, make_policy
from transload_router.core.policy.types import (
    Ask,
    Chance,
    Decision,
    Destination,
    FleetView,
    Reason,
    Row,
    Terms,
)

__all__ = [
    "POLICIES",
    "Ask",
    "Candidate",
    "Chance",
    "CostPolicy",
    "Decision",
    "Destination",
    "FleetView",
    "LeastReserved",
    "LegRequest",
    "Policy",
    "Reason",
    "Row",
    "Terms",
    "Weights",
    "make_policy",
]
