"""Plans carried out by the connector's calls of the kernels, every address checked."""

from __future__ import annotations

from transload_abi.plan.types import Plan
from transload_connector.transports.kernel_calls import Call, Pools, calls
from transload_connector.transports.kernel_calls_convert import carry_out

__all__ = ["Call", "calls", "execute"]


def execute(plan: Plan, src: Pools, dst: Pools, implementation: str | None) -> None:
    """Make all calls; pools are flat uint8 tensors by id."""
    carry_out(plan, src, dst, implementation=implementation)
