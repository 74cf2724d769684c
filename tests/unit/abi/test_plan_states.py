"""Recurrent layers' states by head: split, merged and replicated over ranks."""

import random
from collections.abc import Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from support.abi_addresses import bit_of
from support.abi_moves import Memory, filled, moved
from support.abi_pages import Field, cells, page_bytes
from support.abi_placements import MODEL
from transload_abi.check import check
from transload_abi.errors import Refused
from transload_abi.plan import Blocks, Cover, Pair
from transload_abi.proof import prove
from transload_abi.roles import ROLES
from transload_abi.types import VERSION, Descriptor, Group, Owner, Place, Pool

NUM_HEADS = 8
NUM_GROUPS = 2
TOKENS = 16
NUM_BLOCKS = 4
STATES: dict[str, tuple[Field, ...]] = {
    "heads": (Field("conv_x", "bf16", "D", 12), Field("ssm_h", "f32", "D", 20)),
    "groups": (Field("conv_b", "bf16", "D", 9), Field("conv_c", "bf16", "D", 9)),
}


def attention(owner: Owner) -> Group:
    """Two layers of keys and values, in a pool of their own."""
    count = owner.heads[1] - owner.heads[0]
    roles = cells([Field("k", "bf16", "D", 4), Field("v", "bf16", "D", 4)], [("N", TOKENS)])
    cell, wide = 128, []
    for role in roles:
        terms = (("H", 1, count, cell * TOKENS), *role.terms)
        kept = tuple(term for term in terms if term[2] > 1)
        wide.append(replace(role, shape={"H": count, **role.shape}, terms=kept))
    page = page_bytes(wide)
    return Group(
        id="attention",
        kind="full",
        layers=(1, 3),
        tokens_per_block=TOKENS,
        places=(Place(("kv",), 2 * page, page),),
        roles=tuple(wide),
        null_block=0,
        owner=owner,
    )


def mamba(rank: int, size: int, layers: tuple[int, ...] = (0, 2)) -> Descriptor:
    """One of `size` ranks: its heads, and the groups that these belong to."""
    per_rank = NUM_HEADS // size
    share = max(NUM_GROUPS // size, 1)
    replicas = max(size // NUM_GROUPS, 1)
    first = rank // replicas * share
    owners = {
        "heads": Owner((rank * per_rank, (rank + 1) * per_rank, NUM_HEADS)),
        "groups": Owner((first, first + share, NUM_GROUPS), replica=(rank % replicas, replicas)),
    }
    groups, offset, made = [], 0, {}
    for name, fields in STATES.items():
        count = owners[name].heads[1] - owners[name].heads[0]
        # Parts one after the other, and heads within each.
        roles, base = [], 0
        for field in fields:
            roles += cells([field], [("H", count), ("N", 1)], base)
            base += count * field.bits
        made[name] = roles, -(-base // 32) * 4
    page = sum(size_bytes for _, size_bytes in made.values())
    for name, (roles, size_bytes) in made.items():
        groups.append(
            Group(
                id=name,
                kind="recurrent",
                layers=layers,
                tokens_per_block=TOKENS,
                places=(Place(("states",), page * len(layers), page, offset),),
                roles=tuple(roles),
                tokens_per_state=(TOKENS, 1),
                table=1,
                null_block=0,
                owner=owners[name],
            )
        )
        offset += size_bytes
    keys = attention(owners["heads"])
    pools = (
        Pool("states", "device", page * len(layers) * NUM_BLOCKS, NUM_BLOCKS, 4),
        Pool("kv", "device", keys.places[0].block_stride * NUM_BLOCKS, NUM_BLOCKS),
    )
    d = Descriptor(VERSION, MODEL, pools, (*groups, keys))
    check(d)
    return d


def spots(d: Descriptor, ids: dict[int, int]) -> Iterator[tuple[str, int, int, str]]:
    """Pool, first byte and size of each element of one block, and what it is."""
    for group in d.groups:
        for role, position in product(group.roles, range(len(group.layers))):
            axes = ROLES[role.role].axes
            for index in product(*(range(role.shape[axis]) for axis in axes)):
                named = dict(zip(axes, index, strict=True))
                pool, bit = bit_of(
                    group, role.role, layer=position, block=ids[group.table], **named
                )
                head = named["H"] + group.owner.heads[0]
                name = f"{role.role} {group.layers[position]} {head} {index[1:]}"
                yield pool, bit // 8, role.bits // 8, name


def held(d: Descriptor, ids: dict[int, int]) -> Memory:
    """Memory in which every element of one block is what its name says."""
    memory = filled(d, 1)
    for pool, byte, size, name in spots(d, ids):
        memory[pool][byte : byte + size] = random.Random(name).randbytes(size)
    return memory


@pytest.mark.parametrize(("ours", "theirs"), [(2, 4), (4, 2), (1, 4), (4, 1), (8, 2), (4, 4)])
def test_states_of_ranks_become_those_of_others(ours: int, theirs: int) -> None:
    sources = [mamba(rank, ours) for rank in range(ours)]
    src_ids, dst_ids = {0: 3, 1: 2}, {0: 1, 1: 3}
    for rank in range(theirs):
        dst = mamba(rank, theirs)
        cover = Cover.compile(sources, dst)
        lists = {table: [one] for table, one in src_ids.items()}
        blocks = Blocks(lists, {table: [one] for table, one in dst_ids.items()}, TOKENS)
        memory = filled(dst, 2)
        for plan, source in zip(cover.plan(blocks), cover.sources, strict=True):
            if plan is not None:
                assert source is not None
                prove(plan, source, dst, blocks)
                memory = moved(plan, held(source, src_ids), memory)
        due = filled(dst, 2)
        for pool, byte, size, name in spots(dst, dst_ids):
            due[pool][byte : byte + size] = random.Random(name).randbytes(size)
        assert memory == due


def test_only_ranks_that_hold_a_group_give_it() -> None:
    sources = [mamba(rank, 4) for rank in range(4)]
    cover = Cover.compile(sources, mamba(1, 2))
    given = [
        {(group.id.split("/")[0], group.owner.heads[:2]) for group in source.groups}
        if source
        else set()
        for source in cover.sources
    ]
    # Ranks 2 and 3 hold the second group alike, and the first of them gives it.
    assert given == [
        set(),
        set(),
        {("heads", (4, 6)), ("attention", (4, 6)), ("groups", (1, 2))},
        {("heads", (6, 8)), ("attention", (6, 8))},
    ]


def test_a_rank_that_is_left_out_is_missed() -> None:
    sources = [mamba(rank, 4) for rank in (0, 1, 3)]
    with pytest.raises(Refused, match="heads: no source has heads 4 to 5 of layers 0, 2"):
        Cover.compile(sources, mamba(0, 1))


def test_states_of_another_number_of_heads_are_refused() -> None:
    src, dst = mamba(0, 1), mamba(0, 1)
    first, *rest = dst.groups
    fewer = replace(first, owner=replace(first.owner, heads=(0, NUM_HEADS, 2 * NUM_HEADS)))
    with pytest.raises(Refused, match="heads"):
        Pair.compile(src, replace(dst, groups=(fewer, *rest)))
