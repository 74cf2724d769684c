"""Footprints against sets of bits written out one by one."""

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from transload_abi.footprint import Footprint, normalize, overlap

LOOPS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.one_of(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 64]), st.integers(0, 40)),
    ),
    max_size=4,
).map(tuple)
FOOTPRINTS = st.builds(Footprint, st.integers(0, 60), st.integers(1, 8), LOOPS)


def _bits(footprint: Footprint) -> list[int]:
    counts = [range(count) for count, _ in footprint.loops]
    starts = [
        footprint.base
        + sum(i * stride for i, (_, stride) in zip(index, footprint.loops, strict=True))
        for index in product(*counts)
    ]
    return [bit for start in starts for bit in range(start, start + footprint.size)]


@settings(max_examples=400)
@given(st.lists(FOOTPRINTS, max_size=3))
def test_overlap_finds_a_shared_bit_if_there_is_one(footprints: list[Footprint]) -> None:
    bits = [_bits(each) for each in footprints]
    shared = {(i, i) for i, each in enumerate(bits) if len(set(each)) < len(each)}
    shared |= {
        (i, j) for i, j in combinations(range(len(bits)), 2) if not set(bits[i]).isdisjoint(bits[j])
    }
    found = overlap(footprints)
    assert found in shared if shared else found is None


@given(FOOTPRINTS)
def test_normalize_keeps_every_bit_as_often(footprint: Footprint) -> None:
    normal = normalize(footprint)
    assert sorted(_bits(normal)) == sorted(_bits(footprint))
    assert normalize(normal) == normal
    assert footprint.end == max(_bits(footprint)) + 1


@given(
    st.permutations([2, 3, 2, 4]),
    st.integers(1, 3),
    st.lists(st.integers(0, 2), min_size=5, max_size=5),
)
def test_parts_that_alternate_in_nested_loops_share_nothing(
    counts: list[int], parts: int, pads: list[int]
) -> None:
    stride, loops = 8 * parts, []
    for count, pad in zip(counts, pads[:4], strict=True):
        loops.append((count, stride))
        stride = stride * count + pad
    found = [Footprint(8 * part + pads[4], 8, tuple(loops)) for part in range(parts)]
    assert overlap(found) is None
    assert overlap([*found, found[0]]) == (0, parts)
