"""The canonical form, field by field."""

import pytest
from msgspec.structs import replace

from support.abi_placements import PLACEMENTS, SHAPE, sglang, vllm
from transload_abi.canonical import Term, canonical, canonical_group, canonical_terms
from transload_abi.errors import Contradiction
from transload_abi.types import Owner, Role, TokenSlice


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ((), ()),
        ((("D", 1, 1, 8),), ()),
        ((("D", 1, 8, 8),), (("D", 1, 8, 8),)),
        ((("D", 1, 4, 8), ("D", 4, 2, 32)), (("D", 1, 8, 8),)),
        ((("D", 4, 2, 32), ("D", 1, 4, 8)), (("D", 1, 8, 8),)),
        ((("D", 1, 2, 8), ("D", 2, 2, 16), ("D", 4, 2, 32)), (("D", 1, 8, 8),)),
        ((("D", 1, 2, 8), ("D", 2, 1, 999), ("D", 2, 4, 16)), (("D", 1, 8, 8),)),
        ((("D", 1, 4, 8), ("D", 4, 2, 40)), (("D", 1, 4, 8), ("D", 4, 2, 40))),
        ((("D", 1, 2, 8), ("N", 2, 2, 16)), (("N", 2, 2, 16), ("D", 1, 2, 8))),
        (
            (("G", 1, 2, 1), ("D", 1, 2, 1), ("N", 1, 2, 1), ("H", 1, 2, 1)),
            (("H", 1, 2, 1), ("N", 1, 2, 1), ("D", 1, 2, 1), ("G", 1, 2, 1)),
        ),
    ],
)
def test_digits(terms: tuple[Term, ...], expected: tuple[Term, ...]) -> None:
    assert canonical_terms(Role("k", "bf16", 16, {}, terms)) == expected


@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_known_placements_lose_nothing(name: str) -> None:
    descriptor = PLACEMENTS[name](SHAPE)
    once = canonical(descriptor)
    assert canonical(once) == once
    assert {pool.id for pool in once.pools} == {pool.id for pool in descriptor.pools}
    assert [role.role for role in once.groups[0].roles] == ["k", "v"]


def test_places_are_numbered_by_their_use() -> None:
    (group,) = sglang().groups
    k, v = group.roles
    k_place, v_place = group.places
    other = replace(
        group,
        places=(v_place, replace(k_place, offset=64), k_place, v_place),
        roles=(replace(v, place=3), replace(k, place=2)),
    )
    assert canonical_group(other) == canonical_group(group)
    assert canonical_group(other).places == (k_place, v_place)
    same = replace(group, places=(k_place, k_place), roles=(k, v))
    assert canonical_group(same).places == (k_place,)
    assert [role.place for role in canonical_group(same).roles] == [0, 0]


@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_that_is_not_there(place: int) -> None:
    (group,) = sglang().groups
    with pytest.raises(Contradiction, match=f"is in place {place} of 2"):
        canonical_group(replace(group, roles=(replace(group.roles[0], place=place),)))


def test_pools_groups_and_shared_layers_are_sorted() -> None:
    descriptor = sglang()
    (group,) = descriptor.groups
    groups = [
        replace(group, id=name, table=table) for name, table in (("a", 1), ("c", 0), ("b", 0))
    ]
    model = replace(descriptor.model, kv_share=((9, 1), (8, 0)))
    form = canonical(
        replace(descriptor, model=model, pools=descriptor.pools[::-1], groups=tuple(groups))
    )
    assert [each.id for each in form.pools] == ["k0", "k1", "v0", "v1"]
    assert [each.id for each in form.groups] == ["b", "c", "a"]
    assert form.model.kv_share == ((8, 0), (9, 1))


def test_layers_keep_their_order_and_one_layer_needs_no_stride() -> None:
    (group,) = vllm("LBHNC").groups
    swapped = canonical_group(replace(group, layers=(1, 0)))
    assert swapped.layers == (1, 0)
    assert swapped.places[0].layer_stride > 0
    assert canonical_group(replace(group, layers=(1,))).places[0].layer_stride == 0


def test_interleave_says_nothing_where_one_rank_has_all_tokens() -> None:
    (group,) = vllm("LBHNC").groups
    one = replace(group, owner=Owner(tokens=TokenSlice(0, 1, 16)))
    two = replace(group, owner=Owner(tokens=TokenSlice(1, 2, 16)))
    assert canonical_group(one).owner.tokens == TokenSlice()
    assert canonical_group(two).owner.tokens == TokenSlice(1, 2, 16)
