"""Plans between any two placements of any group: every kind, codec, digit order and slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from support.abi_strategies import descriptors, evened, respelled
from support.abi_values import representable
from transload_abi import oracle
from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.codecs import CODECS
from transload_abi.compare import compare
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Refused
from transload_abi.plan import Blocks, Pair
from transload_abi.plan.pieces import local_tokens, num_list_blocks
from transload_abi.proof import prove
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Group, Place, Pool, Role, Rope

Array = NDArray[Any]

NUM_BLOCKS = 9
SLOW = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def known(d: Descriptor) -> Descriptor:
    """With a model that is known, and its rotation; all blocks are held, all groups travel."""
    groups = tuple(
        replace(
            evened(group),
            transferable=True,
            null_block=None,
            opaque=group.opaque if group.role("page") else "",
        )
        for group in d.groups
    )
    model = replace(d.model, revision="main", rope=Rope("applied"))
    return replace(d, model=model, groups=groups)


@st.composite
def placed_anew(draw: st.DrawFn, d: Descriptor) -> Descriptor:
    """The same layers and heads in other places, block sizes and perhaps dtypes."""
    pools, groups = [], []
    for number, group in enumerate(d.groups):
        is_whole = group.kind in ("ring", "recurrent") or bool(group.opaque)
        factor = 1 if is_whole else draw(st.sampled_from([1, 2, 3]))
        tokens = group.tokens_per_block * factor
        dtypes = {role.role: role.dtype for role in group.roles}
        if draw(st.booleans()):
            rule = CODECS[group.codec.id]
            allowed = next(each for each in rule.role_sets if each.keys() == dtypes.keys())
            dtypes = {name: draw(st.sampled_from(sorted(allowed[name]))) for name in dtypes}
        roles, page = group.roles, _page_bytes(group, 0)
        if not group.opaque:
            roles, page = draw(_page(group, factor, dtypes))
        first = draw(st.integers(0, 3))
        layer = page + draw(st.integers(0, 2))
        block = layer * len(group.layers) + draw(st.integers(0, 2))
        place = Place((f"new {number}",), block, layer, first, draw(st.sampled_from([0, page])))
        groups.append(replace(group, tokens_per_block=tokens, places=(place,), roles=roles))
        size = first + block * NUM_BLOCKS
        pools.append(Pool(f"new {number}", "host", size, NUM_BLOCKS))
    return replace(d, pools=tuple(pools), groups=tuple(groups))


@st.composite
def _page(
    draw: st.DrawFn, group: Group, factor: int, dtypes: dict[str, str]
) -> tuple[tuple[Role, ...], int]:
    roles, end = [], 0
    for role in draw(st.permutations(group.roles)):
        bits = DTYPES[dtypes[role.role]].bits
        shape = {
            axis: extent * factor if axis == "N" else extent for axis, extent in role.shape.items()
        }
        digits = [each for axis, extent in shape.items() for each in draw(_digits(axis, extent))]
        stride, terms = bits, []
        for axis, div, extent in draw(st.permutations(digits)):
            terms.append((axis, div, extent, stride))
            stride = stride * extent + 8 * draw(st.integers(0, 1))
        fields = {"dtype": dtypes[role.role], "bits": bits, "shape": shape}
        roles.append(replace(role, **fields, terms=tuple(terms), base_bits=end, place=0))
        end = -(-(end + stride) // 8) * 8
    return tuple(roles), end // 8 + draw(st.integers(0, 3))


@st.composite
def _digits(draw: st.DrawFn, axis: str, extent: int) -> list[tuple[str, int, int]]:
    first = draw(st.sampled_from([each for each in range(1, extent + 1) if extent % each == 0]))
    rows = [(axis, 1, first), (axis, first, extent // first)]
    return [row for row in rows if row[2] > 1]


def roomy(d: Descriptor) -> Descriptor:
    """The same pages in pools of `NUM_BLOCKS` blocks, one after the other."""
    pools, groups = [], []
    for group in d.groups:
        places = []
        for number, place in enumerate(group.places):
            name = f"{group.id}.{number}"
            size = max(place.page_bytes, _page_bytes(group, number))
            block = size * len(group.layers)
            pools.append(Pool(name, "host", block * NUM_BLOCKS, NUM_BLOCKS))
            places.append(Place((name,), block, size, 0, place.page_bytes))
        groups.append(replace(group, places=tuple(places)))
    return replace(d, pools=tuple(pools), groups=tuple(groups))


def _page_bytes(group: Group, number: int) -> int:
    def end(role: Role) -> int:
        return role.base_bits + role.bits + sum((n - 1) * step for *_, n, step in role.terms)

    return max((-(-end(role) // 8) for role in group.roles if role.place == number), default=0)


def compiled(src: Descriptor, dst: Descriptor) -> Pair:
    """The pair, unless neighbours of four bits would have to part."""
    try:
        return Pair.compile(src, dst, allow_lossy=True)
    except Refused as error:
        is_too_small = "less than a byte" in str(error) or "inside of a byte" in str(error)
        groups = (*src.groups, *dst.groups)
        is_by_halves = any(role.bits < 8 for group in groups for role in group.roles)
        assume(not (is_too_small and is_by_halves))
        raise


def blocks_of(pair: Pair, num_tokens: int, turn: int) -> Blocks:
    """Lists as long as the request, of blocks in some order."""
    lists: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
    for lane in pair.lanes:
        for grid, each in zip((lane.src, lane.dst), lists, strict=True):
            is_one = lane.kind in ("ring", "recurrent")
            count = 1 if is_one else num_list_blocks(grid, num_tokens)
            assume(count <= NUM_BLOCKS)
            each[grid.table] = [(turn + 4 * at) % NUM_BLOCKS for at in range(count)]
    return Blocks(*lists, num_tokens)


def filled(d: Descriptor, seed: int) -> oracle.Memory:
    """Any bits, and in the elements of values what they hold without rounding."""
    chance = np.random.default_rng(seed)
    memory = {pool.id: chance.integers(0, 256, pool.num_bytes, np.uint8) for pool in d.pools}
    for group in d.groups:
        scales = CODECS[group.codec.id].scale_role.values()
        for role in group.roles:
            if role.role not in scales and oracle.has_values(group, role.role):
                values = representable(group, role, NUM_BLOCKS, chance)
                what = (group.id, role.role, range(NUM_BLOCKS))
                oracle.write_values(d, memory, *what, values)
    return memory


def states(group: Group, role: str, found: Array, num_tokens: int) -> Array:
    """The request's part of a role's blocks: `[layers, states, ...]`; pages by blocks."""
    axes, num_local = ROLES[role].axes, local_tokens(group.owner.tokens, num_tokens)
    if "N" not in axes:
        return (
            found if group.kind == "ring" else found[:, : -(-num_local // group.tokens_per_block)]
        )
    by_state = np.moveaxis(found, 2 + axes.index("N"), 2)
    by_state = by_state.reshape(len(found), -1, *by_state.shape[3:])
    if group.kind in ("ring", "recurrent"):
        return by_state
    per, states_of = group.tokens_per_state
    return by_state[:, : num_local * states_of // per]


def carried(src: Descriptor, dst: Descriptor, num_tokens: int, turn: int) -> None:
    """Plan, prove and execute; bits arrive where they move, and numbers where no loss is told."""
    pair = compiled(src, dst)
    blocks = blocks_of(pair, num_tokens, turn)
    plan = pair.plan(blocks)
    prove(plan, src, dst, blocks)
    before, after = filled(src, num_tokens), oracle.blank(dst)
    oracle.execute(plan, before, after)
    is_lossy = compare(src, dst).verdict == "lossy"
    changed = {each.role for lane in pair.lanes for each in lane.conversions}
    for ours, theirs in zip(src.groups, dst.groups, strict=True):
        lists = blocks.src[ours.table], blocks.dst[theirs.table]
        scales = {scale: value for value, scale in CODECS[theirs.codec.id].scale_role.items()}
        for role in (role.role for role in theirs.roles):
            read: Callable[..., Array] = oracle.read_elements
            if scales.get(role, role) in changed:
                if is_lossy or role in scales:
                    continue
                read = oracle.read_values
            due = read(src, before, ours.id, role, lists[0])
            found = read(dst, after, theirs.id, role, lists[1])
            np.testing.assert_array_equal(
                states(theirs, role, found, num_tokens), states(ours, role, due, num_tokens)
            )


@given(st.data(), st.integers(1, 20), st.integers(0, 8))
@SLOW
def test_any_group_moves_to_any_placement(data: st.DataObject, num_tokens: int, turn: int) -> None:
    src = roomy(known(data.draw(descriptors())))
    dst = data.draw(placed_anew(src))
    check(src)
    check(dst)
    carried(src, dst, num_tokens, turn)
    carried(dst, src, num_tokens, turn)


@given(st.data())
@SLOW
def test_two_spellings_make_one_plan(data: st.DataObject) -> None:
    d = known(data.draw(descriptors()))
    other = data.draw(respelled(d))
    assume(compare(d, d).verdict != "refused")
    plain, spelled = compiled(canonical(d), canonical(d)), compiled(other, other)
    assert sorted(plain.templates) == sorted(spelled.templates)
    assert plain.templates or not d.groups
    assert not any(lane.conversions for lane in plain.lanes)
