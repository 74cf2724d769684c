"""Every format from each of its layouts to each other one, element by element."""

from itertools import permutations

import pytest
from msgspec.structs import replace

from support import abi_formats as formats
from support.abi_moves import filled, moved, moved_by_hand, regroup, with_heads
from support.abi_pages import Shape
from support.abi_relaid import HEADS, LAYOUTS, ROWS, in_cells, in_regions, with_roles
from transload_abi.check import check
from transload_abi.errors import Refused
from transload_abi.floats import f32
from transload_abi.plan import Blocks, Cover, Pair, Plan, run_lengths
from transload_abi.plan.shares import share
from transload_abi.proof import prove
from transload_abi.types import Codec, Descriptor, Param, Role


def carried(src: Descriptor, dst: Descriptor, blocks: Blocks) -> Plan:
    """Plan, prove and carry out a move of bits; all bytes are then as if moved by hand."""
    check(src)
    check(dst)
    pair = Pair.compile(src, dst)
    plan = pair.plan(blocks)
    prove(plan, src, dst, blocks)
    assert not any(lane.conversions for lane in pair.lanes)
    memories = filled(src, 1), filled(dst, 2)
    assert moved(plan, *memories) == moved_by_hand(src, dst, blocks, memories)
    return plan


def lists(src: Descriptor, dst: Descriptor) -> Blocks:
    """Two blocks of the larger side, or the last one where that is all."""
    sizes = [d.groups[0].tokens_per_block for d in (src, dst)]
    if src.groups[0].kind in ("ring", "recurrent"):
        return Blocks({0: [1]}, {0: [1]}, sizes[0])
    count = max(sizes) * (2 if dst.pools[0].num_blocks > 2 else 1)
    ids = [3, 1, 4, 2, 8, 5, 7, 6] if dst.pools[0].num_blocks > 2 else [1]
    return Blocks({0: ids[: count // sizes[0]]}, {0: ids[::-1][: count // sizes[1]]}, count)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_format_moves_between_its_layouts(name: str) -> None:
    for src, dst in permutations(LAYOUTS[name](), 2):
        carried(src, dst, lists(src, dst))


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (formats.nvfp4(shape=HEADS), formats.nvfp4(True, shape=HEADS._replace(tokens=4))),
        (
            formats.nvfp4(True, shape=HEADS),
            in_regions(formats.nvfp4(shape=HEADS._replace(tokens=2))),
        ),
        (formats.int4(shape=HEADS._replace(tokens=2)), in_regions(formats.int4(shape=HEADS))),
        (formats.ds_mla_352(ROWS), in_regions(formats.ds_mla_352(ROWS._replace(tokens=8)))),
        (formats.v4_c4(ROWS._replace(tokens=8)), in_cells(formats.v4_c4(ROWS._replace(tokens=16)))),
        (
            formats.turboquant(shape=HEADS),
            in_cells(formats.turboquant(shape=HEADS._replace(tokens=4)), "NH"),
        ),
    ],
)
def test_a_format_moves_to_blocks_of_another_size(src: Descriptor, dst: Descriptor) -> None:
    carried(src, dst, lists(src, dst))
    carried(dst, src, lists(dst, src))


def test_tiles_are_cut_where_they_end() -> None:
    src = formats.nvfp4(True, shape=HEADS)
    (lane,) = Pair.compile(src, formats.nvfp4(True, shape=HEADS._replace(tokens=4))).lanes
    assert (lane.src.parts, lane.dst.parts) == (2, 1)
    # Six is no multiple of the four tokens of a tile, so both are cut into pairs of tokens.
    other = formats.nvfp4(shape=HEADS._replace(tokens=6))
    (lane,) = Pair.compile(src, other).lanes
    assert (lane.src.parts, lane.dst.parts) == (4, 3)


def test_equal_pages_move_as_one_run() -> None:
    d = formats.nvfp4(True, shape=HEADS)
    plan = carried(d, d, Blocks({0: [3, 1]}, {0: [2, 4]}, 16))
    assert run_lengths(plan) == {d.pools[0].block_bytes: 2}


# --- less than a byte


def transposed(shape: Shape = HEADS) -> Descriptor:
    """Four-bit elements with the tokens innermost, scales behind them."""
    d = formats.int4(shape=shape)
    heads, tokens, size = shape.heads, shape.tokens, shape.size
    plane = heads * tokens * size * 4
    roles, base = [], 0
    for role in d.groups[0].roles:
        terms = [("H", 1, heads, tokens * 32), ("N", 1, tokens, 32)]
        if "D" in role.shape:
            terms = [("H", 1, heads, tokens * size * 4), ("N", 1, tokens, 4)]
            terms.append(("D", 1, size, tokens * 4))
        kept = tuple(term for term in terms if term[2] > 1)
        roles.append(replace(role, terms=kept, base_bits=base))
        base += plane if "D" in role.shape else heads * tokens * 32
    return with_roles(d, roles)


def test_neighbours_of_four_bits_do_not_part() -> None:
    message = r"a copy of k moves less than a byte \(group to group\)"
    with pytest.raises(Refused, match=message):
        Pair.compile(formats.int4(shape=HEADS), transposed())
    with pytest.raises(Refused, match=message):
        Pair.compile(transposed(), formats.int4(shape=HEADS))


def test_neighbours_of_four_bits_move_together() -> None:
    padded = transposed()
    (group,) = padded.groups
    wider: list[Role] = []
    for role in group.roles:
        terms = tuple(
            (axis, div, extent, 2 * stride if axis != "N" and "D" in role.shape else stride)
            for axis, div, extent, stride in role.terms
        )
        wider.append(replace(role, terms=terms, base_bits=2 * role.base_bits))
    carried(padded, with_roles(padded, wider), Blocks({0: [3, 1]}, {0: [2, 4]}, 16))


def test_blocks_are_not_cut_between_such_neighbours() -> None:
    single = transposed(HEADS._replace(tokens=1))
    with pytest.raises(Refused, match="can only be cut inside of a byte"):
        Pair.compile(transposed(), single)
    pairs = transposed(HEADS._replace(tokens=2))
    (lane,) = Pair.compile(transposed(), pairs).lanes
    assert (lane.src.parts, lane.dst.parts) == (4, 1)


# --- pages that nobody describes


def opaque(text: str = "writer", **fields: object) -> Descriptor:
    return regroup(formats.opaque(text, 192), **fields)


def test_a_page_that_nobody_describes_moves_whole() -> None:
    plan = carried(opaque(), opaque(), Blocks({0: [1]}, {0: [1]}, 16))
    assert run_lengths(plan) == {192: 1}
    bare = opaque()
    place = replace(bare.groups[0].places[0], page_bytes=0, block_stride=256)
    pool = replace(bare.pools[0], num_bytes=512, block_bytes=0)
    apart = replace(regroup(bare, places=(place,)), pools=(pool,))
    assert run_lengths(carried(bare, apart, Blocks({0: [1]}, {0: [1]}, 16))) == {192: 1}


@pytest.mark.parametrize(
    "dst",
    [
        opaque("another writer"),
        opaque(tokens_per_block=8),
        opaque(owner=replace(opaque().groups[0].owner, heads=(0, 4, 8))),
        regroup(formats.opaque("writer", 96)),
    ],
)
def test_a_page_that_nobody_describes_is_neither_cut_nor_read(dst: Descriptor) -> None:
    with pytest.raises(Refused):
        Pair.compile(opaque(), dst)


def test_no_share_of_such_a_page_is_made() -> None:
    (whole,), (part,) = opaque().groups, opaque().groups
    half = replace(part, owner=replace(part.owner, heads=(0, 4, 8)))
    shorter = replace(part, tokens_per_block=8)
    for ours, theirs in ((whole, half), (half, whole), (whole, shorter)):
        with pytest.raises(Refused, match=r"nobody describes move whole \(group to group\)"):
            share(ours, theirs, (0,))
    assert share(half, half, (0,)).is_whole


# --- parts of sources


def layered(scales: list[float], layers: tuple[int, ...]) -> Descriptor:
    """NVFP4 of so many layers, each with its own scale of K; V's is 1."""
    d = formats.nvfp4(True, shape=HEADS._replace(layers=len(layers)))
    params: dict[str, Param] = {
        "scales.k": [f32(each) for each in scales],
        "scales.v": [f32(1.0)] * len(layers),
        "rotation.k": formats.SIGNS,
    }
    return regroup(d, layers=layers, codec=Codec("block_scaled", params))


def test_layers_that_are_taken_keep_their_scales() -> None:
    sources = [layered([2.0, 0.5], (0, 1)), layered([0.5, 4.0, 8.0], (1, 2, 3))]
    cover = Cover.compile(sources, layered([2.0, 0.5, 4.0, 8.0], (0, 1, 2, 3)))
    assert cover.sources[0] is sources[0]
    assert cover.sources[1]
    (taken,) = cover.sources[1].groups
    assert taken.layers == (2, 3)
    assert taken.codec.params["scales.k"] == [f32(4.0), f32(8.0)]
    assert taken.codec.params["rotation.k"] == formats.SIGNS
    assert not any(lane.conversions for pair in cover.pairs if pair for lane in pair.lanes)


def test_heads_that_are_taken_keep_their_tiles() -> None:
    def rank(first: int, count: int) -> Descriptor:
        d = formats.nvfp4(True, shape=HEADS._replace(heads=count))
        return with_heads(d, first, 4)

    sources, dst = [rank(0, 3), rank(2, 2)], rank(0, 4)
    cover = Cover.compile(sources, dst)
    blocks = Blocks({0: [3, 1]}, {0: [2, 4]}, 16)
    memory, due = filled(dst, 9), filled(dst, 9)
    for plan, source in zip(cover.plan(blocks), cover.sources, strict=True):
        assert plan
        assert source
        prove(plan, source, dst, blocks)
        held = filled(source, 1)
        memory = moved(plan, held, memory)
        due = moved_by_hand(source, dst, blocks, (held, due))
    assert [source.groups[0].owner.heads for source in cover.sources if source] == [
        (0, 3, 4),
        (3, 4, 4),
    ]
    assert memory == due
