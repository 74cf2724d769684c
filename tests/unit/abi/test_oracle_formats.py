"""Every format that engines write: what the oracle puts into a page is found there again."""

import numpy as np
import pytest

from support.abi_formats import FORMATS
from support.abi_values import representable
from transload_abi import oracle
from transload_abi.codecs import CODECS
from transload_abi.errors import PlanError
from transload_abi.types import Descriptor, Group, Role

BLOCKS = [1]


def value_roles(group: Group) -> list[Role]:
    """Those that are not made along with others."""
    scales = CODECS[group.codec.id].scale_role.values()
    return [
        role
        for role in group.roles
        if role.role not in scales and oracle.has_values(group, role.role)
    ]


def beside(d: Descriptor, memory: oracle.Memory) -> set[int]:
    """The bytes that lie in block 0 or behind all elements of block 1."""
    (pool,) = d.pools
    return set(memory[pool.id][: pool.block_bytes].tolist())


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_that_a_format_holds_come_back(name: str) -> None:
    d = FORMATS[name][0]()
    (group,) = d.groups
    memory = oracle.blank(d)
    chance = np.random.default_rng(5)
    written = {}
    for role in value_roles(group):
        values = representable(group, role, len(BLOCKS), chance)
        written[role.role] = values
        oracle.write_values(d, memory, group.id, role.role, BLOCKS, values)
    for role_name, values in written.items():
        read = oracle.read_values(d, memory, group.id, role_name, BLOCKS)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, values)
    assert beside(d, memory) == {oracle.FILL}


@pytest.mark.parametrize("name", FORMATS)
def test_any_bits_come_back(name: str) -> None:
    d = FORMATS[name][0]()
    (group,) = d.groups
    (pool,) = d.pools
    chance = np.random.default_rng(6)
    source = {pool.id: chance.integers(0, 256, pool.num_bytes, np.uint8)}
    memory = oracle.blank(d)
    for role in group.roles:
        bits = oracle.read_elements(d, source, group.id, role.role, BLOCKS)
        oracle.write_elements(d, memory, group.id, role.role, BLOCKS, bits)
        again = oracle.read_elements(d, memory, group.id, role.role, BLOCKS)
        np.testing.assert_array_equal(again, bits)
    assert beside(d, memory) == {oracle.FILL}
    page, held = memory[pool.id][pool.block_bytes :], source[pool.id][pool.block_bytes :]
    num_bits = sum(role.bits * int(np.prod([*role.shape.values()])) for role in group.roles)
    differ = int(np.count_nonzero(page != held))
    assert differ <= group.places[0].page_bytes - num_bits // 8


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("turboquant 4bit", "k_code"),
        ("turboquant 4bit", "v_scale"),
        ("opaque", "page"),
        ("key ring", "position"),
    ],
)
def test_what_is_worth_nothing_to_others_is_named(name: str, role: str) -> None:
    d = FORMATS[name][0]()
    (group,) = d.groups
    memory = oracle.blank(d)
    assert not oracle.has_values(group, role)
    bits = oracle.read_elements(d, memory, group.id, role, BLOCKS)
    words = f"group.{role}: codec '{group.codec.id}' does not say what its elements are worth"
    with pytest.raises(PlanError, match=words):
        oracle.read_values(d, memory, group.id, role, BLOCKS)
    with pytest.raises(PlanError, match=words):
        oracle.write_values(d, memory, group.id, role, BLOCKS, bits.astype(np.float32))
