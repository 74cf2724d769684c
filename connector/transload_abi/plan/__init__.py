"""From two descriptors and block lists to the fewest strided copies."""

from transload_abi.plan.cover import Cover
from transload_abi.plan.pair import Lane, Pair
from transload_abi.plan.pieces import Blocks
from transload_abi.plan.regions import Region, regions
from transload_abi.plan.runs import copies, num_bytes, num_runs, run_lengths
from transload_abi.plan.types import Batch, Conversion, Copy, Operand, Plan, Side, Template

__all__ = [
    "Batch",
    "Blocks",
    "Conversion",
    "Copy",
    "Cover",
    "Lane",
    "Operand",
    "Pair",
    "Plan",
    "Region",
    "Side",
    "Template",
    "copies",
    "num_bytes",
    "num_runs",
    "regions",
    "run_lengths",
]
