"""Pairs that are refused: what `compare` refuses, and what would be cut too small."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from support.abi_moves import regroup, with_heads
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.compare import compare, match_groups
from transload_abi.errors import Refused
from transload_abi.plan import Pair
from transload_abi.plan import pair as pair_module
from transload_abi.plan.budget import Budget
from transload_abi.plan.shares import share
from transload_abi.plan.strips import templates
from transload_abi.types import Descriptor, Owner, Role

SHAPE = Shape(layers=1, blocks=4, heads=2, tokens=4, size=8)


def cache(**fields: object) -> Descriptor:
    return regroup(PLACEMENTS["LBNHC"](SHAPE), **fields)


OTHERS = {
    "same": cache(),
    "window": cache(window=4),
    "sliding": cache(kind="sliding_window", window=4),
    "chunked": cache(kind="chunked_local", window=4),
    "f32": PLACEMENTS["LBHNC"](SHAPE._replace(dtype="f32")),
    "f16": PLACEMENTS["LBHNC"](SHAPE._replace(dtype="f16")),
    "wide": PLACEMENTS["LBHNC"](SHAPE._replace(size=16)),
    "layers": cache(layers=(7,)),
    "left out": cache(transferable=False),
    "other heads": with_heads(cache(), 0, 4),
    "no common head": with_heads(cache(), 2, 4),
    "adapter": replace(cache(), model=replace(cache().model, adapter="x")),
}


@pytest.mark.parametrize(("src", "dst"), list(product(OTHERS, OTHERS)))
@pytest.mark.parametrize("allow_lossy", [False, True])
def test_a_pair_is_refused_where_the_comparison_is(src: str, dst: str, allow_lossy: bool) -> None:
    sides = OTHERS[src], OTHERS[dst]
    verdict = compare(*sides).verdict
    if verdict == "refused" or (verdict == "lossy" and not allow_lossy):
        with pytest.raises(Refused) as error:
            Pair.compile(*sides, allow_lossy=allow_lossy)
        finding = next(
            each for each in compare(*sides).findings if each.verdict in ("refused", "lossy")
        )
        assert finding.reason in str(error.value)
        assert error.value.path == finding.path
    else:
        Pair.compile(*sides, allow_lossy=allow_lossy)


def test_a_destination_that_takes_nothing_has_no_lanes() -> None:
    d = cache(transferable=False)
    assert Pair.compile(cache(), d).lanes == ()


def split(d: Descriptor, terms: tuple[tuple[str, int, int, int], ...]) -> Descriptor:
    """The elements of both roles in other digits."""
    (group,) = d.groups
    roles = tuple(
        replace(role, terms=(*terms, *(each for each in role.terms if each[0] != terms[0][0])))
        for role in group.roles
    )
    return regroup(d, roles=roles)


def test_less_than_a_byte_is_not_moved() -> None:
    d = cache()
    (group,) = d.groups
    roles = tuple(replace(role, base_bits=role.base_bits + 4) for role in group.roles)
    with pytest.raises(Refused, match=r"a copy of k moves less than a byte \(attention to atten"):
        Pair.compile(d, regroup(d, roles=roles))


def test_pieces_that_begin_inside_a_byte_are_not_cut() -> None:
    d = split(cache(), (("N", 1, 4, 4),))
    with pytest.raises(Refused, match="blocks of 4 and 1 tokens can only be cut inside of a byte"):
        Pair.compile(d, PLACEMENTS["LBNHC"](SHAPE._replace(tokens=1)))


def test_blocks_are_not_cut_into_very_many_pieces() -> None:
    small = PLACEMENTS["LBNHC"](SHAPE._replace(tokens=1))
    Pair.compile(small, PLACEMENTS["LBNHC"](SHAPE._replace(tokens=1 << 12)))
    with pytest.raises(Refused, match="would be cut into more than 4096 pieces"):
        Pair.compile(small, PLACEMENTS["LBNHC"](SHAPE._replace(tokens=1 << 13)))


def state(extents: tuple[int, ...]) -> Descriptor:
    """A recurrent state whose elements have digits of these extents, with a pad after each."""
    terms, div, stride = [], 1, 32
    for extent in extents:
        terms.append(("D", div, extent, stride))
        div, stride = div * extent, stride * extent + 32
    shape = {"N": 1, "D": div}
    roles = tuple(
        Role(name, "f32", 32, shape, tuple(terms), at * stride)
        for at, name in enumerate(("conv", "ssm"))
    )
    return cache(kind="recurrent", roles=roles, tokens_per_state=(4, 1), owner=Owner())


def test_digits_that_hardly_meet_are_refused_soon() -> None:
    # 3^6 * 2^6 elements are 46,656 steps; 3^6 * 2^7 are too many.
    ours, theirs = state((3,) * 6 + (2,) * 7), state((2,) * 7 + (3,) * 6)
    with pytest.raises(Refused, match="would be walked in 93312 steps, more than 65536"):
        Pair.compile(ours, theirs)


def test_copies_of_very_many_shapes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = state((3, 2, 3)), state((2, 3, 3))
    assert len(Pair.compile(ours, theirs).templates) > 1
    monkeypatch.setattr(Budget.__init__, "__defaults__", (1,))
    message = (
        "attention to attention: the pair would take more than 1 copies and conversions for each "
        "piece, or as much work"
    )
    with pytest.raises(Refused, match=f"^{message}$"):
        Pair.compile(ours, theirs)


def in_groups(d: Descriptor, count: int) -> Descriptor:
    """The same group again and again, for other layers, in other pools."""
    (group,) = d.groups
    return replace(
        d,
        pools=tuple(replace(d.pools[0], id=f"kv{at}") for at in range(count)),
        groups=tuple(
            replace(
                group,
                id=f"group {at}",
                layers=(at,),
                places=(replace(group.places[0], pools=(f"kv{at}",)),),
            )
            for at in range(count)
        ),
    )


def test_one_budget_serves_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = state((3, 2, 3)), state((2, 3, 3))
    budget = Budget()
    monkeypatch.setattr(pair_module, "Budget", lambda: budget)
    Pair.compile(ours, theirs)
    cost = budget.most - budget.left
    assert cost >= len(Pair.compile(ours, theirs).templates)
    monkeypatch.setattr(pair_module, "Budget", lambda: Budget(3 * cost))
    Pair.compile(in_groups(ours, 3), in_groups(theirs, 3))
    with pytest.raises(Refused, match=r"^group 3 to group 3: the pair would take more than"):
        Pair.compile(in_groups(ours, 4), in_groups(theirs, 4))


def test_steps_that_are_walked_count_too() -> None:
    # 46,656 steps for each of conv and ssm: 5,832 copies' worth.
    ours, theirs = state((3,) * 6 + (2,) * 6), state((2,) * 6 + (3,) * 6)
    budget = Budget(2 * 5832 - 1)
    (match,) = match_groups(ours, theirs)
    with pytest.raises(Refused, match="or as much work"):
        templates(share(*match), budget)


@pytest.mark.parametrize(
    "dst", [cache(window=4), split(cache(), (("N", 1, 4, 12),))], ids=["window", "bits"]
)
def test_names_of_groups_are_cut_in_messages(dst: Descriptor) -> None:
    sides = cache(id="i" * 512), regroup(dst, id="j" * 512)
    with pytest.raises(Refused, match=r"i{77}\.\.\. to j{77}\.\.\.") as error:
        Pair.compile(*sides)
    assert len(str(error.value)) < 300
