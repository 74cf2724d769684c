"""Whatever placement a group has: what the oracle writes into it is read from it."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from support.abi_strategies import descriptors, evened
from support.abi_values import representable
from transload_abi import oracle
from transload_abi.check import check
from transload_abi.codecs import CODECS
from transload_abi.dtypes import DTYPES
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Group

SLOW = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def blocks_of(d: Descriptor, group: Group) -> list[int]:
    """All blocks, the last first."""
    return list(range(d.pool(group.places[0].pools[0]).num_blocks))[::-1]


@given(descriptors(), st.integers(0, 1 << 32))
@SLOW
def test_elements_of_any_placement_come_back(d: Descriptor, seed: int) -> None:
    check(d)
    chance, memory = np.random.default_rng(seed), oracle.blank(d)
    written = {}
    for group in d.groups:
        for role in group.roles:
            blocks = blocks_of(d, group)
            axes = [role.shape[axis] for axis in ROLES[role.role].axes]
            shape = (len(group.layers), len(blocks), *axes)
            bits = DTYPES[role.dtype].bits
            raw = chance.integers(0, 2**bits - 1, shape, np.uint64, endpoint=True)
            elements = raw.astype(f"<u{max(bits // 8, 1)}")
            written[group.id, role.role] = blocks, elements
            oracle.write_elements(d, memory, group.id, role.role, blocks, elements)
    for (group_id, name), (blocks, elements) in written.items():
        read = oracle.read_elements(d, memory, group_id, name, blocks)
        np.testing.assert_array_equal(read, elements)


@given(descriptors(), st.integers(0, 1 << 32))
@SLOW
def test_values_of_any_placement_come_back(d: Descriptor, seed: int) -> None:
    d = replace(d, groups=tuple(map(evened, d.groups)))
    check(d)
    chance, memory = np.random.default_rng(seed), oracle.blank(d)
    written = {}
    for group in d.groups:
        blocks = blocks_of(d, group)
        scales = CODECS[group.codec.id].scale_role.values()
        for role in group.roles:
            if role.role in scales or not oracle.has_values(group, role.role):
                continue
            values = representable(group, role, len(blocks), chance)
            written[group.id, role.role] = blocks, values
            oracle.write_values(d, memory, group.id, role.role, blocks, values)
    for (group_id, name), (blocks, values) in written.items():
        read = oracle.read_values(d, memory, group_id, name, blocks)
        np.testing.assert_array_equal(read, values)
