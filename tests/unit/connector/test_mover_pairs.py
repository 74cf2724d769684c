"""Random pairs of placements, block sizes and ranks: against plans on the holders' own memory."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch

from support.abi_formats import int4, per_token_head, plain
from support.abi_moves import regroup, with_heads, with_layers, with_tokens
from support.abi_pages import PLAIN, Field, described, role_of
from support.abi_pages import Shape as PageShape
from support.abi_placements import PLACEMENTS, Shape
from support.abi_relaid import in_cells, in_regions
from support.wire_payloads import payload, tables, transfer
from transload_abi import oracle
from transload_abi.errors import Refused
from transload_abi.plan import Blocks, Cover
from transload_abi.types import Descriptor
from transload_connector.transports import kernel_calls_scratch
from transload_connector.transports.mover import Mover, Request

HEADS = 4
BLOCKS = 14


class World(NamedTuple):
    """Holders with their pools and lists, a destination, and a request."""

    holders: list[tuple[Descriptor, oracle.Memory, dict[int, list[int]]]]
    dst: Descriptor
    request: Request


def _rank(placement: str, shape: Shape, rank: int, size: int) -> Descriptor:
    """One rank of so many that share the heads."""
    each = HEADS // size
    return with_heads(PLACEMENTS[placement](shape._replace(heads=each)), rank * each, HEADS)


def _world(
    chance: random.Random,
    placements: tuple[str, str],
    sizes: tuple[int, int],
    dtypes: tuple[str, str] = ("bf16", "bf16"),
) -> World:
    tokens = (chance.choice((2, 4, 8)), chance.choice((2, 4, 8)))
    shape = Shape(layers=chance.randint(1, 3), blocks=BLOCKS, size=chance.choice((8, 16)))
    src, dst = (
        shape._replace(tokens=count, dtype=dtype)
        for count, dtype in zip(tokens, dtypes, strict=True)
    )
    num_tokens = chance.randint(1, 24)
    first = chance.randint(0, num_tokens // dst.tokens) * dst.tokens
    ids = [chance.sample(range(1, BLOCKS), -(-num_tokens // side.tokens)) for side in (src, dst)]
    source_ranks = [_rank(placements[0], src, rank, sizes[0]) for rank in range(sizes[0])]
    target = _rank(placements[1], dst, chance.randrange(sizes[1]), sizes[1])
    return _filled(chance, source_ranks, target, ids, num_tokens, first)


def _filled(
    chance: random.Random,
    sources: Sequence[Descriptor],
    dst: Descriptor,
    ids: Sequence[list[int]],
    num_tokens: int,
    first: int = 0,
) -> World:
    bits = np.random.default_rng(chance.getrandbits(32))
    memories = [
        {pool.id: bits.integers(0, 256, pool.num_bytes, np.uint8) for pool in source.pools}
        for source in sources
    ]
    lists = {0: ids[0]}
    holders = [(source, memory, lists) for source, memory in zip(sources, memories, strict=True)]
    request = Request([tables(source, lists) for source in sources], {0: ids[1]}, num_tokens, first)
    return World(holders, dst, request)


def _due(world: World) -> oracle.Memory:
    """The destination after plans that know nothing of payloads."""
    sources = [source for source, _, _ in world.holders]
    cover = Cover.compile(sources, world.dst, allow_lossy=True)
    _, dst_lists, num_tokens, first, _ = world.request
    blocks = [Blocks(lists, dst_lists, num_tokens, first) for _, _, lists in world.holders]
    memory = oracle.blank(world.dst)
    for plan, (_, source, _) in zip(cover.plan(blocks), world.holders, strict=True):
        if plan is not None:
            oracle.execute(plan, source, memory)
    return memory


def _check(world: World, **options: int) -> int:
    """What comes is what is due, and nothing beside it; how many reads that took."""
    sources = [source for source, _, _ in world.holders]
    mover = Mover.compile(sources, world.dst, allows_lossy=True, **options)
    due, memory = _due(world), oracle.blank(world.dst)
    plans = transfer(mover, world.request, world.holders, memory)
    for pool, bytes_ in due.items():
        np.testing.assert_array_equal(memory[pool], bytes_, pool)
    return len(plans)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2), (2, 1), (4, 1), (1, 4), (2, 4), (4, 2)])
@pytest.mark.parametrize("src", PLACEMENTS)
def test_ranks_of_any_placements(src: str, sizes: tuple[int, int]) -> None:
    chance = random.Random(f"{src} {sizes}")
    for dst in PLACEMENTS:
        world = _world(chance, (src, dst), sizes)
        num_reads = _check(world)
        in_chunks = _check(world, chunk_bytes=1)
        first = world.request.first_token
        assert (num_reads > 0) == (first < world.request.num_tokens)
        assert in_chunks >= num_reads


@pytest.mark.parametrize("src", PLACEMENTS)
def test_numbers_of_ranks_of_any_placements(src: str) -> None:
    chance = random.Random(f"numbers of {src}")
    for dst in PLACEMENTS:
        dtypes = chance.choice((("bf16", "f32"), ("f32", "f16"), ("f16", "bf16")))
        world = _world(chance, (src, dst), chance.choice(((1, 2), (2, 1), (1, 1))), dtypes)
        _check(world)
        _check(world, chunk_bytes=1)


@pytest.mark.parametrize("interleave", [1, 4])
def test_context_parallel_ranks(interleave: int) -> None:
    chance = random.Random(interleave)
    for src, dst in (("LBHNC", "rocm"), ("sglang", "odd"), ("trtllm", "BLNHC")):
        shape = Shape(layers=2, blocks=BLOCKS, tokens=4, size=8)
        ranks = [with_tokens(PLACEMENTS[src](shape), rank, 2, interleave) for rank in range(2)]
        ids = [chance.sample(range(1, BLOCKS), 3), chance.sample(range(1, BLOCKS), 6)]
        _check(_filled(chance, ranks, PLACEMENTS[dst](shape), ids, 21))


def test_layers_of_two_sources() -> None:
    chance = random.Random(1)
    shape = Shape(layers=2, blocks=BLOCKS, tokens=4, size=8)
    halves = [with_layers(PLACEMENTS["LBNHC"](shape), 2 * rank) for rank in range(2)]
    dst = PLACEMENTS["sglang"](shape._replace(layers=4))
    ids = [chance.sample(range(1, BLOCKS), 3) for _ in range(2)]
    _check(_filled(chance, halves, dst, ids, 11))


def test_replicas_give_each_a_part_and_nothing_twice() -> None:
    chance = random.Random(2)
    shape = Shape(layers=2, blocks=BLOCKS, tokens=4, size=8)
    ranks = [with_heads(PLACEMENTS["LBHNC"](shape), 0, HEADS, (number, 2)) for number in range(2)]
    ids = [chance.sample(range(1, BLOCKS), 6) for _ in range(2)]
    world = _filled(chance, ranks, PLACEMENTS["rocm"](shape), ids, 24)
    # Replicas hold the same.
    first, memory, lists = world.holders[0]
    world = world._replace(holders=[(first, memory, lists), (ranks[1], memory, lists)])
    _check(world)
    plans = Mover.compile(ranks, world.dst).reads(world.request)
    assert {plan.source for plan in plans} == {0, 1}
    blocks = sum(plan.chunk.num_blocks for plan in plans)
    assert blocks == len(ids[0])


def test_a_source_that_lacks_heads_is_refused_by_name() -> None:
    shape = Shape(layers=2, blocks=BLOCKS, tokens=4, size=8)
    with pytest.raises(Refused, match="no source has heads 2 to 3 of layers 0, 1"):
        Mover.compile(_rank("LBHNC", shape, 0, 2), PLACEMENTS["LBHNC"](shape._replace(heads=HEADS)))


def test_heads_that_are_sent_with_others_are_moved_alone() -> None:
    """Where no digits describe the bytes of one head, pages are read; some of them is not taken."""
    chance = random.Random(4)
    sources = [_gapped(0, 2), _gapped(1, 3)]
    ids = [chance.sample(range(1, 5), 3) for _ in range(2)]
    world = _filled(chance, sources, _gapped(0, 3), ids, 12)
    _check(world)
    forms = [(part.source, part.read.form) for part in Mover.compile(sources, world.dst).parts]
    assert forms == [(0, "page"), (1, "page")]


def _gapped(first: int, end: int) -> Descriptor:
    """Of each head the values lie between the first key and the second."""
    heads = ("H", end - first, 3200)
    keys = role_of(Field("k", "f16", "D", 5), [heads, ("N", 4, 800)], 0)
    values = role_of(Field("v", "f16", "D", 5), [heads, ("N", 4, 80)], 80)
    shape = PageShape(heads=end - first, tokens=4, size=5, layers=1, blocks=5)
    d = described("full", [keys, values], 400 * (end - first), shape, PLAIN)
    return with_heads(d, first, 3)


@pytest.mark.parametrize("made", [in_regions, in_cells])
def test_scales_of_pieces_may_be_at_other_distances(
    made: Callable[[Descriptor], Descriptor],
) -> None:
    """Blocks are cut, and scales lie in a region of their own."""
    chance = random.Random(3)
    shape = PageShape(heads=2, tokens=8, size=16, layers=2, blocks=BLOCKS)
    source = made(per_token_head(shape=shape))
    for tokens in (2, 4, 8):
        dst = plain("f32", shape._replace(tokens=tokens))
        ids = [chance.sample(range(1, BLOCKS), -(-20 // each)) for each in (8, tokens)]
        _check(_filled(chance, [source], dst, ids, 20))


def test_scratch_is_used_for_some_pieces_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(6)
    shape = PageShape(heads=2, tokens=4, size=16, layers=2, blocks=BLOCKS)
    ids = [list(range(2, 8)), list(range(3, 9))]
    world = _filled(chance, [plain(shape=shape)], int4(False, shape), ids, 24)
    for pieces in (1, 4):
        monkeypatch.setattr(kernel_calls_scratch, "MAX_ELEMENTS", pieces * 2 * 4 * 16)
        _check(world)


def test_groups_may_have_any_name() -> None:
    chance = random.Random(9)
    shape = Shape(layers=2, blocks=BLOCKS, tokens=4, size=8)
    sources = [
        regroup(with_heads(PLACEMENTS["LBNHC"](shape._replace(heads=2)), first, 3), id="a/0.1/b")
        for first in (0, 1)
    ]
    dst = PLACEMENTS["rocm"](shape._replace(heads=3))
    ids = [chance.sample(range(1, BLOCKS), 3) for _ in range(2)]
    _check(_filled(chance, sources, dst, ids, 11))


@pytest.mark.parametrize("dtypes", [("bf16", "bf16"), ("bf16", "f32")])
def test_nothing_beside_the_pools_is_touched(dtypes: tuple[str, str]) -> None:
    chance = random.Random(7)
    for dst in PLACEMENTS:
        world = _world(chance, ("LBNHC", dst), (1, 1), dtypes)
        due = _due(world)
        guarded = {
            pool: torch.full((len(bytes_) + 128,), 0x3C, dtype=torch.uint8)
            for pool, bytes_ in due.items()
        }
        inside = {pool: memory[64:-64] for pool, memory in guarded.items()}
        for memory in inside.values():
            memory.fill_(oracle.FILL)
        (source, bytes_, lists) = world.holders[0]
        mover = Mover.compile(source, world.dst, allows_lossy=True)
        for number, plan in enumerate(mover.reads(world.request), 1):
            sent = payload(source, bytes_, lists, plan.message(number, "handoff"))
            mover.land(plan, bytes(sent), inside)
        for pool, memory in guarded.items():
            assert (memory[:64] == 0x3C).all()
            assert (memory[-64:] == 0x3C).all()
            np.testing.assert_array_equal(inside[pool].numpy(), due[pool])
