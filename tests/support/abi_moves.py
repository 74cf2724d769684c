"""Moving blocks by hand: run by run as a plan says, element by element as the formula says."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from msgspec.structs import replace

from support.abi_addresses import bit_of
from transload_abi.plan import Blocks, Plan, copies
from transload_abi.plan.types import Copy
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Group, Owner, TokenSlice

Memory = dict[str, bytearray]


def filled(d: Descriptor, seed: int = 0) -> Memory:
    """Every pool full of random bytes."""
    chance = random.Random(seed)
    return {pool.id: bytearray(chance.randbytes(pool.num_bytes)) for pool in d.pools}


def runs(copy: Copy) -> Iterator[tuple[int, int]]:
    """Source and destination byte of every run."""
    for turns in product(*(range(count) for count, _, _ in copy.loops)):
        steps = [(turn * a, turn * b) for turn, (_, a, b) in zip(turns, copy.loops, strict=True)]
        yield copy.src + sum(a for a, _ in steps), copy.dst + sum(b for _, b in steps)


def moved(plan: Plan, src: Memory, dst: Memory) -> Memory:
    """The destination after a plan's copies."""
    after = {pool: bytearray(memory) for pool, memory in dst.items()}
    for copy in copies(plan):
        source, into, size = src[copy.src_pool], after[copy.dst_pool], copy.run_bytes
        for ours, theirs in runs(copy):
            assert 0 <= ours <= len(source) - size
            assert 0 <= theirs <= len(into) - size
            into[theirs : theirs + size] = source[ours : ours + size]
    return after


def moved_by_hand(
    src: Descriptor, dst: Descriptor, blocks: Blocks, memories: tuple[Memory, Memory]
) -> Memory:
    """The destination after each element of each state was moved by itself, bit by bit.

    Knows whole lists, no windows and no null blocks, and of fractions those with a 1; groups meet
    by layers and roles.
    """
    after = {pool: bytearray(memory) for pool, memory in memories[1].items()}
    for theirs, ours in product(dst.groups, src.groups):
        pairs = list(_pairs(ours, theirs, blocks))
        for layer in sorted(set(theirs.layers) & set(ours.layers)):
            for pair in pairs:
                _move_state(ours, theirs, layer, pair, (memories[0], after))
    return after


_Spot = tuple[int, int]
"""Block id and state in the block."""


def _pairs(ours: Group, theirs: Group, blocks: Blocks) -> Iterator[tuple[_Spot, _Spot]]:
    """Where each state is and where it goes to."""
    ids = blocks.src[ours.table], blocks.dst[theirs.table]
    if theirs.kind in ("recurrent", "ring"):
        for state in range(theirs.states_per_block):
            yield (ids[0][-1], state), (ids[1][-1], state)
        return
    num, per = theirs.tokens_per_state
    for token in range(blocks.first_token, blocks.num_tokens):
        source, into = spot(ours, ids[0], token), spot(theirs, ids[1], token)
        if source and into:
            for i in range(max(per // num, 1)):
                yield (
                    (source[0], source[1] * per // num + i),
                    (into[0], into[1] * per // num + i),
                )


def spot(group: Group, ids: Sequence[int], token: int) -> tuple[int, int] | None:
    """Block id and token in the block; None where another rank has the token."""
    tokens = group.owner.tokens
    if token // tokens.interleave % tokens.size != tokens.rank:
        return None
    local = token // (tokens.interleave * tokens.size) * tokens.interleave
    local += token % tokens.interleave
    return ids[local // group.tokens_per_block], local % group.tokens_per_block


def _move_state(
    ours: Group,
    theirs: Group,
    layer: int,
    spots: tuple[_Spot, _Spot],
    memories: tuple[Memory, Memory],
) -> None:
    (src_block, src_state), (dst_block, dst_state) = spots
    first = max(ours.owner.heads[0], theirs.owner.heads[0])
    end = min(ours.owner.heads[1], theirs.owner.heads[1])
    positions = ours.layers.index(layer), theirs.layers.index(layer)
    for role in theirs.roles:
        if ours.role(role.role) is None:
            continue
        inner = [axis for axis in ROLES[role.role].axes if axis not in "HN"]
        heads = range(first, end) if "H" in role.shape else range(1)
        for head, *indices in product(heads, *(range(role.shape[axis]) for axis in inner)):
            index = dict(zip(inner, indices, strict=True))
            if "H" in role.shape:
                index["H"] = head - ours.owner.heads[0]
            source = bit_of(
                ours, role.role, layer=positions[0], block=src_block, N=src_state, **index
            )
            if "H" in role.shape:
                index["H"] = head - theirs.owner.heads[0]
            into = bit_of(
                theirs, role.role, layer=positions[1], block=dst_block, N=dst_state, **index
            )
            _move_bits(
                (memories[0][source[0]], source[1]), (memories[1][into[0]], into[1]), role.bits
            )


def _move_bits(source: tuple[bytearray, int], into: tuple[bytearray, int], count: int) -> None:
    """Moves an element of whole bytes, or of a part of one."""
    (ours, a), (theirs, b) = source, into
    if count % 8 == 0:
        theirs[b // 8 : (b + count) // 8] = ours[a // 8 : (a + count) // 8]
        return
    mask = (1 << count) - 1
    bits = ours[a // 8] >> a % 8 & mask
    theirs[b // 8] = theirs[b // 8] & ~(mask << b % 8) | bits << b % 8


def element_bytes(
    d: Descriptor, lists: Mapping[int, Sequence[int]], tokens: Iterable[int]
) -> dict[str, set[int]]:
    """By pool: the bytes that hold elements of some tokens."""
    held: dict[str, set[int]] = {pool.id: set() for pool in d.pools}
    for group, token in product(d.groups, list(tokens)):
        at = spot(group, lists[group.table], token)
        for role, layer in product(group.roles, range(len(group.layers))) if at else ():
            axes = [range(role.shape.get("H", 1)), range(role.shape.get("D", 1))]
            for head, element in product(*axes):
                assert at
                pool, bit = bit_of(
                    group, role.role, layer=layer, block=at[0], N=at[1], H=head, D=element
                )
                held[pool].update(range(bit // 8, (bit + role.bits) // 8))
    return held


# --- descriptors of parts


def regroup(d: Descriptor, **fields: object) -> Descriptor:
    """A descriptor of one group with some fields of that group changed."""
    (group,) = d.groups
    return replace(d, groups=(replace(group, **fields),))


def with_heads(
    d: Descriptor, first: int, total: int, replica: tuple[int, int] = (0, 1)
) -> Descriptor:
    """The descriptor's heads as a slice of more, from `first` on."""
    (group,) = d.groups
    heads = (first, first + group.num_heads, total)
    return regroup(d, owner=Owner(heads, group.owner.tokens, replica))


def with_layers(d: Descriptor, first: int) -> Descriptor:
    """The descriptor's layers under other numbers, from `first` on."""
    (group,) = d.groups
    return regroup(d, layers=tuple(first + layer for layer in group.layers))


def with_tokens(d: Descriptor, rank: int, size: int, interleave: int = 1) -> Descriptor:
    """The descriptor as one rank of a context-parallel group."""
    (group,) = d.groups
    tokens = TokenSlice(rank, size, interleave)
    return regroup(d, owner=replace(group.owner, tokens=tokens))
