"""How long things take, learned from what was measured."""

from transload_router.core.cost.destination import DestinationCost
from transload_router.core.cost.links import Links
from transload_router.core.cost.model import CostModel

__all__ = ["CostModel", "DestinationCost", "Links"]
