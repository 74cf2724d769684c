"""A payload is read by its own descriptor as the holder's pools are by the holder's."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from support.abi_formats import FORMATS
from support.abi_pages import PLAIN, Field, Shape, described, role_of
from support.abi_placements import PLACEMENTS
from support.abi_placements import Shape as Placed
from support.abi_relaid import LAYOUTS
from support.wire_payloads import payload
from transload_abi import oracle
from transload_abi.canonical import canonical
from transload_abi.errors import DescriptorError, Refused
from transload_abi.types import Descriptor
from transload_abi.wire.errors import BadRead
from transload_abi.wire.messages import Read
from transload_connector.transports.staging import POOL, staged

PLACED = Placed(layers=3, blocks=4, heads=4, tokens=4, size=8)

DESCRIPTORS: dict[str, Descriptor] = {
    **{name: placed(PLACED) for name, placed in PLACEMENTS.items()},
    **{f"page of {name}": made() for name, (made, _) in FORMATS.items()},
    **{
        f"{name}, layout {number}": d
        for name, layouts in LAYOUTS.items()
        for number, d in enumerate(layouts())
    },
}

SELECTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "pages": {"form": "page"},
    "whole blocks": {"form": "block"},
    "a layer": {"layers": (1, 1)},
    "pages of two layers": {"layers": (1, 2), "form": "page"},
    "the second head": {"heads": (1, 1)},
    "the last heads of the first layers": {"heads": (1, 3), "layers": (0, 2)},
}
"""What is asked for; heads count from the first that is held."""


def _read(d: Descriptor, num_blocks: int, **fields: Any) -> Read:
    return Read(1, "handoff", d.groups[0].id, ((0, num_blocks),), **fields)


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_elements_are_where_the_descriptor_says(name: str) -> None:
    d = canonical(DESCRIPTORS[name])
    (group,) = d.groups
    chance = np.random.default_rng(3)
    memory = {pool.id: chance.integers(0, 256, pool.num_bytes, np.uint8) for pool in d.pools}
    ids = [1, 0]
    tried = 0
    for fields in SELECTIONS.values():
        read = _read(d, len(ids), **fields)
        try:
            made = staged(d, read, len(ids))
        except BadRead:
            continue
        tried += 1
        sent = payload(d, memory, {group.table: ids}, read)
        assert len(sent) == made.pools[0].num_bytes
        received = {POOL: np.frombuffer(sent, np.uint8)}
        layers = slice(*_span(read.layers, len(group.layers)))
        heads = slice(*_span(read.heads, group.num_heads))
        assert made.groups[0].layers == group.layers[layers]
        for role in group.roles:
            due = oracle.read_elements(d, memory, group.id, role.role, ids)[layers]
            if "H" in role.shape:
                due = due[:, :, heads]
            found = oracle.read_elements(made, received, group.id, role.role, [0, 1])
            np.testing.assert_array_equal(found, due, f"{fields}: {role.role}")
    assert tried


def _span(asked: tuple[int, int] | None, count: int) -> tuple[int, int]:
    return (0, count) if asked is None else (asked[0], sum(asked))


def test_scales_are_those_of_the_layers_that_are_sent() -> None:
    d = canonical(FORMATS["fp8"][0]())
    (group,) = d.groups
    params: Any = {f"scales.{role}": ["f32:3f800000", "f32:40000000"] for role in "kv"}
    group = replace(
        group,
        layers=(4, 9),
        codec=replace(group.codec, params=params),
        places=(replace(group.places[0], layer_stride=32768, block_stride=65536),),
    )
    pool = replace(d.pools[0], block_bytes=65536, num_bytes=131072)
    d = replace(d, groups=(group,), pools=(pool,))
    made = staged(d, _read(d, 1, layers=(1, 1)), 1)
    assert made.groups[0].layers == (9,)
    assert made.groups[0].codec.params["scales.k"] == ["f32:40000000"]


def test_heads_keep_their_numbers() -> None:
    d = canonical(PLACEMENTS["LBHNC"](PLACED))
    made = staged(d, _read(d, 1, heads=(2, 2)), 1)
    assert made.groups[0].owner.heads == (2, 4, 4)


def test_groups_that_lie_in_the_same_blocks_come_along() -> None:
    d = canonical(PLACEMENTS["BLHNC"](PLACED._replace(layers=2)))
    (group,) = d.groups
    (place,) = group.places
    first = replace(group, id="first", layers=(0,), places=(replace(place, layer_stride=0),))
    behind = replace(place, layer_stride=0, offset=place.layer_stride)
    d = canonical(
        replace(d, groups=(first, replace(first, id="second", layers=(1,), places=(behind,))))
    )
    made = staged(d, _read(d, 1, form="block"), 1)
    assert [each.id for each in made.groups] == ["first", "second"]
    assert len(staged(d, _read(d, 1, form="page"), 1).groups) == 1


def test_elements_that_no_digits_describe_are_refused() -> None:
    """Values between the first key and the second: what is sent has steps of 50, 10 and 10."""
    keys = role_of(Field("k", "f16", "D", 5), [("H", 1, 0), ("N", 4, 800)], 0)
    values = role_of(Field("v", "f16", "D", 5), [("H", 1, 0), ("N", 4, 80)], 80)
    shape = Shape(heads=1, tokens=4, size=5, layers=1, blocks=2)
    d = canonical(described("full", [keys, values], 400, shape, PLAIN))
    with pytest.raises(Refused, match="group: no digits say where k is"):
        staged(d, _read(d, 1), 1)
    assert staged(d, _read(d, 1, form="page"), 1).groups[0].roles == d.groups[0].roles


def test_heads_whose_tokens_lie_apart_in_other_ways_are_refused() -> None:
    """Values lie between the keys of the first head alone: each axis has digits, both have none."""
    keys = role_of(Field("k", "f16", "D", 5), [("H", 2, 800), ("N", 2, 160)], 0)
    values = role_of(Field("v", "f16", "D", 5), [("H", 2, 1600), ("N", 2, 240)], 80)
    shape = Shape(heads=2, tokens=2, size=5, layers=1, blocks=2)
    d = canonical(described("full", [keys, values], 250, shape, PLAIN))
    with pytest.raises(Refused, match="group: no digits say where k is"):
        staged(d, _read(d, 1), 1)


def test_more_bytes_than_a_pool_may_have_are_refused() -> None:
    d = canonical(PLACEMENTS["LBHNC"](PLACED))
    with pytest.raises(DescriptorError, match="num_bytes"):
        staged(d, _read(d, 1), 1 << 42)


def test_a_read_that_the_holder_refuses_is_refused() -> None:
    d = canonical(PLACEMENTS["LBHNC"](PLACED))
    with pytest.raises(BadRead, match=r"read\.layers"):
        staged(d, _read(d, 1, layers=(2, 2)), 1)
