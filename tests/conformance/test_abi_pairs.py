"""Every placement to every other: planned, proved, carried out, and compared element by element."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from support.abi_placements import MODEL, PLACEMENTS, Shape
from transload_abi import oracle
from transload_abi.check import check
from transload_abi.plan import Blocks, Copy, Cover, Pair, Plan, copies
from transload_abi.proof import prove
from transload_abi.types import VERSION, Codec, Descriptor, Group, Owner, Place, Pool, Role

Placement = Callable[[Shape], Descriptor]


class Request(NamedTuple):
    """Blocks on either side, and how many tokens one of the destination holds."""

    blocks: Blocks
    dst_tokens: int


PAIRS = list(itertools.product(PLACEMENTS, PLACEMENTS))


def shapes(rng: random.Random, dtypes: tuple[str, str]) -> tuple[Shape, Shape]:
    """Two sides that differ in nothing but blocks and dtype."""
    small, times = rng.choice((2, 3, 4, 8)), rng.choice((1, 1, 2, 4))
    tokens = [small, small * times]
    rng.shuffle(tokens)
    alike = {"layers": rng.randint(1, 3), "heads": rng.randint(1, 3), "size": rng.choice((8, 16))}
    src, dst = (
        Shape(blocks=64 // small + 2, tokens=count, dtype=dtype, **alike)
        for count, dtype in zip(tokens, dtypes, strict=True)
    )
    return src, dst


def request(rng: random.Random, src: Shape, dst: Shape) -> Request:
    """Up to 32 tokens in scattered blocks; the destination may have the first blocks already."""
    num_tokens = rng.randint(1, 32)
    first_token = rng.randrange(0, num_tokens, dst.tokens)
    src_ids = rng.sample(range(1, src.blocks), -(-num_tokens // src.tokens))
    dst_ids = rng.sample(range(1, dst.blocks), -(-num_tokens // dst.tokens))
    dst_ids = dst_ids[rng.randint(0, first_token // dst.tokens) :]
    blocks = Blocks({0: src_ids}, {0: dst_ids}, num_tokens, first_token)
    return Request(blocks, dst.tokens)


def roles(d: Descriptor) -> list[str]:
    return [role.role for role in d.groups[0].roles]


def by_token(read: NDArray[Any]) -> NDArray[Any]:
    """`[layers, blocks, heads, tokens of a block, ...]` as `[tokens, layers, heads, ...]`."""
    turned = np.moveaxis(read, (1, 3), (0, 1))
    return turned.reshape(-1, *turned.shape[2:])


def filled(d: Descriptor, blocks: list[int], rng: random.Random) -> oracle.Memory:
    """Any bits in all elements of these blocks."""
    memory = oracle.blank(d)
    bits = np.random.default_rng(rng.getrandbits(32))
    for role in d.groups[0].roles:
        was = oracle.read_elements(d, memory, "attention", role.role, blocks)
        found = bits.integers(0, 2**role.bits, was.shape, np.uint64).astype(was.dtype)
        oracle.write_elements(d, memory, "attention", role.role, blocks, found)
    return memory


def assert_only_these_blocks_changed(
    d: Descriptor, memory: oracle.Memory, blocks: list[int]
) -> None:
    changed = {pool: bytes_ != oracle.FILL for pool, bytes_ in memory.items()}
    may = oracle.blank(d, fill=0)
    for role in d.groups[0].roles:
        ones = ~np.zeros_like(oracle.read_elements(d, may, "attention", role.role, blocks))
        oracle.write_elements(d, may, "attention", role.role, blocks, ones)
    for pool, where in changed.items():
        assert not np.any(where & (may[pool] == 0)), pool


def moved(
    src: Descriptor, dst: Descriptor, asked: Request, rng: random.Random
) -> tuple[oracle.Memory, oracle.Memory, Plan]:
    """Both sides after the transfer."""
    source = filled(src, list(asked.blocks.src[0]), rng)
    plan = Pair.compile(src, dst).plan(asked.blocks)
    prove(plan, src, dst)
    memory = oracle.blank(dst)
    oracle.execute(plan, source, memory)
    return source, memory, plan


def assert_came(sent: NDArray[Any], came: NDArray[Any], asked: Request) -> None:
    """The tokens that were asked for are the same; both `[tokens, ...]` of whole block lists."""
    blocks, size = asked.blocks, asked.dst_tokens
    # Lists end with the block of the last token, and the destination's may begin late.
    skipped = -(-blocks.num_tokens // size) - len(blocks.dst[0])
    due = sent[blocks.first_token : blocks.num_tokens]
    assert len(due) == blocks.num_tokens - blocks.first_token
    at = slice(blocks.first_token - skipped * size, blocks.num_tokens - skipped * size)
    np.testing.assert_array_equal(came[at], due)


def assert_tokens_arrived(
    ends: tuple[Descriptor, Descriptor],
    memories: tuple[oracle.Memory, oracle.Memory],
    asked: Request,
    read: Callable[..., NDArray[Any]] = oracle.read_elements,
) -> None:
    for role in roles(ends[1]):
        sent = by_token(read(ends[0], memories[0], "attention", role, asked.blocks.src[0]))
        came = read(ends[1], memories[1], "attention", role, asked.blocks.dst[0])
        assert_came(sent, by_token(came), asked)
    assert_only_these_blocks_changed(ends[1], memories[1], list(asked.blocks.dst[0]))


def run(copy: Copy, src: NDArray[np.uint8], dst: NDArray[np.uint8]) -> None:
    """One copy, run after run."""
    for steps in itertools.product(*(range(count) for count, _, _ in copy.loops)):
        at = copy.src + sum(i * loop[1] for i, loop in zip(steps, copy.loops, strict=True))
        to = copy.dst + sum(i * loop[2] for i, loop in zip(steps, copy.loops, strict=True))
        dst[to : to + copy.run_bytes] = src[at : at + copy.run_bytes]


@pytest.mark.parametrize(("src_name", "dst_name"), PAIRS)
def test_every_token_arrives_and_nothing_else_changes(src_name: str, dst_name: str) -> None:
    rng = random.Random(f"{src_name} {dst_name}")
    for dtype in ("bf16", "f32") * 4:
        src_shape, dst_shape = shapes(rng, (dtype, dtype))
        src, dst = PLACEMENTS[src_name](src_shape), PLACEMENTS[dst_name](dst_shape)
        asked = request(rng, src_shape, dst_shape)
        source, memory, _ = moved(src, dst, asked, rng)
        assert_tokens_arrived((src, dst), (source, memory), asked)


def slice_of(d: Descriptor, first: int, total: int) -> Descriptor:
    """The same pages as those of heads from `first` on."""
    group = d.groups[0]
    owner = Owner(heads=(first, first + group.num_heads, total))
    return replace(d, groups=(replace(group, owner=owner),))


@pytest.mark.parametrize("dst_name", PLACEMENTS)
def test_heads_of_several_ranks_are_put_together(dst_name: str) -> None:
    rng = random.Random(dst_name)
    for _ in range(8):
        counts = [rng.randint(1, 3) for _ in range(rng.randint(2, 3))]
        firsts = [sum(counts[:rank]) for rank in range(len(counts))]
        src_shape, dst_shape = shapes(rng, ("bf16", "bf16"))
        dst_shape = dst_shape._replace(heads=sum(counts))
        dst = PLACEMENTS[dst_name](dst_shape)
        asked = request(rng, src_shape, dst_shape)
        ranks, memories, lists = [], [], []
        for first, count in zip(firsts, counts, strict=True):
            rank = PLACEMENTS[rng.choice(list(PLACEMENTS))](src_shape._replace(heads=count))
            ids = rng.sample(range(1, src_shape.blocks), len(asked.blocks.src[0]))
            memories.append(filled(rank, ids, rng))
            ranks.append(slice_of(rank, first, sum(counts)))
            lists.append(asked.blocks._replace(src={0: ids}))
        memory = oracle.blank(dst)
        cover = Cover.compile(ranks, dst)
        for number, plan in enumerate(cover.plan(lists)):
            narrow = cover.sources[number]
            assert plan is not None
            assert narrow is not None
            prove(plan, narrow, dst)
            oracle.execute(plan, memories[number], memory)
        for role in roles(dst):
            sent = np.concatenate(
                [
                    by_token(oracle.read_elements(rank, held, "attention", role, each.src[0]))
                    for rank, held, each in zip(ranks, memories, lists, strict=True)
                ],
                axis=2,
            )
            came = oracle.read_elements(dst, memory, "attention", role, asked.blocks.dst[0])
            assert_came(sent, by_token(came), asked)
        assert_only_these_blocks_changed(dst, memory, list(asked.blocks.dst[0]))


@pytest.mark.parametrize("src_name", PLACEMENTS)
def test_copies_one_by_one_come_to_the_same(src_name: str) -> None:
    rng = random.Random(src_name)
    names = list(PLACEMENTS)
    for dst_name in (src_name, names[names.index(src_name) - 3]):
        src_shape, dst_shape = shapes(rng, ("bf16", "bf16"))
        src, dst = PLACEMENTS[src_name](src_shape), PLACEMENTS[dst_name](dst_shape)
        source, memory, plan = moved(src, dst, request(rng, src_shape, dst_shape), rng)
        one_by_one = oracle.blank(dst)
        for copy in copies(plan):
            run(copy, source[copy.src_pool], one_by_one[copy.dst_pool])
        for pool, bytes_ in memory.items():
            assert np.array_equal(one_by_one[pool], bytes_), pool


@pytest.mark.parametrize("dst_name", PLACEMENTS)
def test_values_survive_in_more_bits(dst_name: str) -> None:
    rng = random.Random(dst_name)
    for src_name in rng.sample(list(PLACEMENTS), 3):
        src_shape, dst_shape = shapes(rng, ("bf16", "f32"))
        src, dst = PLACEMENTS[src_name](src_shape), PLACEMENTS[dst_name](dst_shape)
        asked = request(rng, src_shape, dst_shape)
        source, memory, _ = moved(src, dst, asked, rng)
        assert_tokens_arrived((src, dst), (source, memory), asked, oracle.read_values)


# --- scales inside of the page


Rows = tuple[tuple[str, int, int, int], ...]


def scaled(shape: Shape, pools: tuple[Pool, ...], places: list[Place], rows: Any) -> Descriptor:
    """A descriptor of `per_token_head`; a row is role, terms, base bits, place."""
    heads, tokens, size = shape.heads, shape.tokens, shape.size
    made = []
    for role, terms, base, place in rows:
        is_scale = role.endswith("_scale")
        extents = {"H": heads, "N": tokens} | ({} if is_scale else {"D": size})
        kept = tuple(term for term in terms if term[2] > 1)
        dtype = "f32" if is_scale else shape.dtype
        made.append(Role(role, dtype, 32 if is_scale else 8, extents, kept, base, place))
    group = Group(
        id="attention",
        kind="full",
        layers=tuple(range(shape.layers)),
        tokens_per_block=tokens,
        places=tuple(places),
        roles=tuple(made),
        codec=Codec("per_token_head"),
        null_block=0,
        owner=Owner(heads=(0, heads, heads)),
    )
    return Descriptor(abi=VERSION, model=MODEL, pools=pools, groups=(group,))


def one_place(shape: Shape, page: int, *, is_block_first: bool) -> tuple[tuple[Pool, ...], Place]:
    """A pool in which pages follow each other."""
    block, layer = (page * shape.layers, page) if is_block_first else (page, page * shape.blocks)
    pool = Pool("kv", "device", page * shape.layers * shape.blocks, shape.blocks)
    layer_stride = layer if shape.layers > 1 else 0
    return (pool,), Place(("kv",), block, layer_stride, page_bytes=page)


def in_cells(shape: Shape, *, is_head_first: bool) -> Descriptor:
    """`[K][scale][V][scale]` for each head and token."""
    heads, tokens, size = shape.heads, shape.tokens, shape.size
    cell = 16 * (size + 4)
    strides = (tokens * cell, cell) if is_head_first else (cell, heads * cell)
    outer: Rows = (("H", 1, heads, strides[0]), ("N", 1, tokens, strides[1]))
    inner: Rows = (*outer, ("D", 1, size, 8))
    pools, place = one_place(shape, heads * tokens * cell // 8, is_block_first=is_head_first)
    rows = []
    for base, role in ((0, "k"), (cell // 2, "v")):
        rows += [(role, inner, base, 0), (f"{role}_scale", outer, base + 8 * size, 0)]
    return scaled(shape, pools, [place], rows)


def behind_transposed_heads(shape: Shape) -> Descriptor:
    """For each head K `[D, N]` and V `[N, D]`; behind them all scales, `[N, H, 2]`."""
    heads, tokens, size = shape.heads, shape.tokens, shape.size
    half = 8 * tokens * size
    scales: Rows = (("H", 1, heads, 64), ("N", 1, tokens, heads * 64))
    k: Rows = (("H", 1, heads, 2 * half), ("N", 1, tokens, 8), ("D", 1, size, 8 * tokens))
    v: Rows = (("H", 1, heads, 2 * half), ("N", 1, tokens, 8 * size), ("D", 1, size, 8))
    behind = 2 * half * heads
    page = behind // 8 + heads * tokens * 8
    pools, place = one_place(shape, page, is_block_first=False)
    rows = [("k", k, 0, 0), ("v", v, half, 0)]
    rows += [("k_scale", scales, behind, 0), ("v_scale", scales, behind + 32, 0)]
    return scaled(shape, pools, [place], rows)


def in_pools_of_their_own(shape: Shape) -> Descriptor:
    """Elements in one pool `[L, B, 2, N, H, D]`, scales in another `[B, L, 2, H, N]`."""
    heads, tokens, size = shape.heads, shape.tokens, shape.size
    plane = heads * tokens
    pools, place = one_place(shape, 2 * plane * size, is_block_first=False)
    side = Pool("scales", "host", 8 * plane * shape.layers * shape.blocks, shape.blocks)
    layer_stride = 8 * plane if shape.layers > 1 else 0
    beside = Place(("scales",), 8 * plane * shape.layers, layer_stride)
    inner: Rows = (("H", 1, heads, 8 * size), ("N", 1, tokens, 8 * size * heads), ("D", 1, size, 8))
    outer: Rows = (("H", 1, heads, 32 * tokens), ("N", 1, tokens, 32))
    rows = [("k", inner, 0, 0), ("v", inner, 8 * plane * size, 0)]
    rows += [("k_scale", outer, 0, 1), ("v_scale", outer, 32 * plane, 1)]
    return scaled(shape, (*pools, side), [place, beside], rows)


SCALED: dict[str, Placement] = {
    "cells, heads first": lambda shape: in_cells(shape, is_head_first=True),
    "cells, tokens first": lambda shape: in_cells(shape, is_head_first=False),
    "behind the page": behind_transposed_heads,
    "a pool of their own": in_pools_of_their_own,
}


@pytest.mark.parametrize(("src_name", "dst_name"), list(itertools.product(SCALED, SCALED)))
def test_scales_go_with_their_elements(src_name: str, dst_name: str) -> None:
    rng = random.Random(f"{src_name} {dst_name}")
    for dtype in ("i8", "e4m3") * 3:
        src_shape, dst_shape = shapes(rng, (dtype, dtype))
        src, dst = SCALED[src_name](src_shape), SCALED[dst_name](dst_shape)
        check(src)
        check(dst)
        asked = request(rng, src_shape, dst_shape)
        source, memory, _ = moved(src, dst, asked, rng)
        assert_tokens_arrived((src, dst), (source, memory), asked)
        assert_tokens_arrived((src, dst), (source, memory), asked, oracle.read_values)


@pytest.mark.parametrize("src_name", SCALED)
def test_scaled_values_survive_in_more_bits(src_name: str) -> None:
    rng = random.Random(src_name)
    for dst_name in rng.sample(list(PLACEMENTS), 3):
        src_shape, dst_shape = shapes(rng, ("e4m3", "f32"))
        src, dst = SCALED[src_name](src_shape), PLACEMENTS[dst_name](dst_shape)
        asked = request(rng, src_shape, dst_shape)
        source, memory, _ = moved(src, dst, asked, rng)
        assert_tokens_arrived((src, dst), (source, memory), asked, oracle.read_values)
