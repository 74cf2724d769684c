"""What holds for the comparison of every pair, whatever the placements, slices and names."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.abi_placements import PLACEMENTS, SHAPE, Shape, vllm
from transload_abi.compare import compare, match_groups
from transload_abi.types import Descriptor, Kind, TokenSlice

PAIRS = list(itertools.product(PLACEMENTS, repeat=2))


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_placement_becomes_every_other(a: str, b: str) -> None:
    there, back = (compare(PLACEMENTS[x](SHAPE), PLACEMENTS[y](SHAPE)) for x, y in ((a, b), (b, a)))
    same = a == b or {a, b} == {"LBHNC", "BLHNC"} or {a, b} == {"LBNHC", "BLNHC"}
    assert there.verdict == back.verdict == ("identical" if same else "lossless")


SHAPES = st.builds(
    Shape,
    layers=st.integers(1, 3),
    blocks=st.integers(1, 3),
    heads=st.integers(1, 3),
    tokens=st.sampled_from((1, 2, 8)),
    size=st.sampled_from((8, 16)),
    dtype=st.sampled_from(("f32", "bf16", "f16")),
)
NAMES = st.sampled_from(sorted(PLACEMENTS))
KINDS: st.SearchStrategy[tuple[Kind, int]] = st.sampled_from(
    (("full", 0), ("full", 8), ("sliding_window", 8), ("chunked_local", 8))
)


@st.composite
def descriptors(draw: st.DrawFn) -> Descriptor:
    d = PLACEMENTS[draw(NAMES)](draw(SHAPES))
    kind, window = draw(KINDS)
    held = d.groups[0]
    first, more = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    total = first + held.num_heads + more
    owner = replace(held.owner, heads=(first, first + held.num_heads, total))
    return replace(d, groups=(replace(held, kind=kind, window=window, owner=owner),))


@given(descriptors())
def test_everything_is_identical_with_itself(d: Descriptor) -> None:
    comparison = compare(d, d)
    assert comparison.verdict == "identical"
    assert {(each.path, each.reason) for each in comparison.findings} == {("", "")}
    assert comparison.absent == ()


@given(descriptors(), descriptors())
def test_what_only_moves_moves_back(a: Descriptor, b: Descriptor) -> None:
    there, back = compare(a, b), compare(b, a)
    has_same_dtype = a.groups[0].roles[0].dtype == b.groups[0].roles[0].dtype
    has_same_kind = a.groups[0].kind == b.groups[0].kind
    if has_same_dtype and has_same_kind:
        assert there.verdict == back.verdict
    assert (there.verdict == "identical") <= (back.verdict == "identical" or not has_same_kind)


@given(descriptors(), descriptors(), st.text("abc", min_size=1, max_size=3))
def test_names_of_groups_and_pools_decide_nothing(a: Descriptor, b: Descriptor, x: str) -> None:
    def renamed(d: Descriptor) -> Descriptor:
        places = tuple(
            replace(each, pools=tuple(x + pool for pool in each.pools))
            for each in d.groups[0].places
        )
        return replace(
            d,
            pools=tuple(replace(pool, id=x + pool.id) for pool in d.pools),
            groups=(replace(d.groups[0], id=x, places=places),),
        )

    plain = [each._replace(src="", dst="") for each in compare(a, b).findings]
    other = [each._replace(src="", dst="") for each in compare(renamed(a), renamed(b)).findings]
    assert plain == other


SLICES = st.integers(1, 4).flatmap(
    lambda size: st.builds(TokenSlice, st.integers(0, size - 1), st.just(size), st.integers(1, 6))
)


@given(SLICES, SLICES)
def test_ranks_with_a_token_in_common(a: TokenSlice, b: TokenSlice) -> None:
    def tokens(part: TokenSlice) -> set[int]:
        period = range(24 * 60)
        return {t for t in period if t // part.interleave % part.size == part.rank}

    def holding(part: TokenSlice) -> Descriptor:
        d = vllm("LBHNC")
        owner = replace(d.groups[0].owner, tokens=part)
        return replace(d, groups=(replace(d.groups[0], owner=owner),))

    src, dst = holding(a), holding(b)
    assert bool(match_groups(src, dst)) == bool(tokens(a) & tokens(b))
