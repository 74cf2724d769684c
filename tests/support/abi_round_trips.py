"""Carrying plans out on the oracle's memories, and which bytes of those are a request's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from support import plan_calls
from transload_abi import oracle
from transload_abi.plan import Plan
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor

Lists = Mapping[int, Sequence[int]]
"""Block ids by table, in the order of their tokens."""

Read = Callable[[Descriptor, oracle.Memory, str, str, Sequence[int]], NDArray[Any]]
"""`oracle.read_values` or `oracle.read_elements`."""


def carry(plan: Plan, src: oracle.Memory, dst: oracle.Memory, implementation: str) -> None:
    """Make the plan's calls of the kernels; the source stays as it is."""
    before = {pool: memory.copy() for pool, memory in src.items()}
    plan_calls.execute(plan, _shared(src), _shared(dst), implementation)
    for pool, memory in before.items():
        np.testing.assert_array_equal(src[pool], memory, f"source {pool}")


def held(d: Descriptor, lists: Lists, num_tokens: int) -> dict[str, NDArray[np.bool_]]:
    """By pool: the bytes of all elements of the tokens `0..num_tokens`; one state is one token."""
    marked = oracle.blank(d, 0)
    for group in d.groups:
        ids = lists[group.table]
        for role in group.roles:
            bits = np.zeros_like(oracle.read_elements(d, marked, group.id, role.role, ids))
            axis = 2 + ROLES[role.role].axes.index("N")
            by_token = np.moveaxis(bits, axis, 2)  # a view: layers, blocks, N, the rest
            token = np.arange(len(ids) * group.tokens_per_block).reshape(len(ids), -1)
            by_token[:, token < num_tokens] = np.iinfo(bits.dtype).max
            raw = oracle.read_elements(d, marked, group.id, role.role, ids)
            assert not raw.any(), "no element is two"
            oracle.write_elements(d, marked, group.id, role.role, ids, bits)
    return {pool: memory != 0 for pool, memory in marked.items()}


def by_token(
    d: Descriptor, memory: oracle.Memory, role: str, ids: Sequence[int], read: Read
) -> NDArray[Any]:
    """What `read` finds of a role of the only group, `[layer, token, (head,) element]`."""
    (group,) = d.groups
    found = read(d, memory, group.id, role, ids)
    found = np.moveaxis(found, 2 + ROLES[role].axes.index("N"), 2)
    return found.reshape(len(found), -1, *found.shape[3:])


def _shared(memory: oracle.Memory) -> dict[str, torch.Tensor]:
    """Pools as tensors of the same memory."""
    return {pool: torch.from_numpy(bytes_) for pool, bytes_ in memory.items()}
