"""Pages that vLLM wrote, moved by the kernels through other placements and back, byte for byte.

The bytes and the values written into them are records of vLLM's own writers; the page is described
by the builder, and what lies between by hand. So builder, planner, proof and kernels are held to
something that none of them has made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from protocol.test_kv_pages import CASES, is_scaled_by_row
from support.abi_moves import regroup, with_heads, with_layers
from support.abi_placements import MODEL, PLACEMENTS, Shape
from support.abi_round_trips import by_token, carry, held
from support.kv_pages import described, unpacked, written
from transload_abi import oracle
from transload_abi.check import check
from transload_abi.compare import compare
from transload_abi.plan import Blocks, Cover, Pair, Plan
from transload_abi.proof import prove
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Place, Pool, Role

RECORDS: Final[dict[str, dict[str, Any]]] = {case["name"]: case for case in CASES}

PLAIN = [n for n, case in RECORDS.items() if "k" in case["written"] and not is_scaled_by_row(case)]
"""Keys and values without scales in the page."""

SMALLEST = "rocm-bf16-LHBNC"
"""12 KiB: few enough for the reference's loops."""

IN_PROCESS = ("torch", "cpu")

REAL: Final = [1, 2]
"""The blocks that were written, of three."""

AWAY: Final = {1: [3, 1], 2: [4, 2, 5, 1], 0.5: [2]}
"""Of six: the blocks between, by their number for each of the real ones."""

PROVEN_OF = 6
"""Of so many journeys one is proven: all of them would take a minute."""

OTHER_FILL = 0x3C
"""What bytes hold before they are written, where `oracle.FILL` is in the page as well."""


@cache
def real(name: str) -> Descriptor:
    """The builder's, of a model that two sides can agree on."""
    return replace(described(RECORDS[name]), model=MODEL)


def is_page(case: dict[str, Any]) -> NDArray[np.bool_]:
    """Which of the pool's bytes are the written blocks', by the letters of the layout alone."""
    spec, layout = case["spec"], case["layout"]
    heads = spec["num_head_slots"] or spec["num_kv_heads"]
    extents = {
        "L": case["num_layers"],
        "B": case["num_blocks"],
        "H": heads,
        "N": spec["block_size"],
    }
    extents["C"] = unpacked(case["pool"], "u1").size // math.prod(extents.values())
    mask = np.zeros([extents[letter] for letter in layout], np.bool_)
    mask.swapaxes(0, layout.index("B"))[REAL] = True
    return mask.reshape(-1)


# --- placements between


def keys_and_values(d: Descriptor, name: str, tokens: int, blocks: int = 6) -> Descriptor:
    """One of the eleven, for the values of `d`."""
    (group,) = d.groups
    k = next(role for role in group.roles if role.role == "k")
    shape = Shape(len(group.layers), blocks, k.shape["H"], tokens, k.shape["D"], k.dtype)
    return replace(regroup(PLACEMENTS[name](shape), codec=group.codec), model=d.model)


class Plane(NamedTuple):
    """Roles that lie together in a page: one, or some as a cell of each index of `outer`.

    Attributes:
        roles: From low addresses to high.
        outer: Axes of the cells, slowest first.
        inner: Axes of a role in a cell, slowest first. None of them need be there.
        pad_bytes: After each cell.
    """

    roles: tuple[Role, ...]
    outer: str
    inner: str
    pad_bytes: int = 0


def laid(plane: Plane, base: int, place: int) -> tuple[list[Role], int]:
    """The roles with their addresses, and the bit behind the plane."""
    first, inside, cell = base, [], 0
    for role in plane.roles:
        terms, end = dense(plane.inner, role.shape, role.bits)
        inside.append((role, terms, first + cell))
        cell += end
    outer, end = dense(plane.outer, plane.roles[0].shape, cell + 8 * plane.pad_bytes)
    found = [
        replace(role, terms=(*outer, *terms), base_bits=start, place=place)
        for role, terms, start in inside
    ]
    return found, base + end


def dense(
    axes: str, shape: dict[str, int], step: int
) -> tuple[tuple[tuple[str, int, int, int], ...], int]:
    """Digits of the axes that there are, the last the fastest, and the bits that they take."""
    terms = []
    for axis in reversed(axes):
        if shape.get(axis, 1) > 1:
            terms.append((axis, 1, shape[axis], step))
            step *= shape[axis]
    return tuple(terms), step


def cells(roles: tuple[Role, ...]) -> list[Plane]:
    """Token by token, head by head: all there is of them, scales before their elements."""
    return [Plane(roles[::-1], "NH", "GD")]


def padded_cells(roles: tuple[Role, ...]) -> list[Plane]:
    return [Plane(roles, "HN", "GD", pad_bytes=12)]


def planes(roles: tuple[Role, ...]) -> list[Plane]:
    """One behind the other, a plane for each role."""
    return [Plane((role,), "HNGD", "") for role in roles]


def transposed(roles: tuple[Role, ...]) -> list[Plane]:
    """Neighbours in memory are neighbouring tokens."""
    return [Plane((role,), "GDHN", "") for role in roles]


BY_HAND: dict[str, tuple[Callable[[tuple[Role, ...]], list[Plane]], str]] = {
    "cells": (cells, "blocks outside"),
    "padded cells": (padded_cells, "layers outside"),
    "planes": (planes, "layers outside"),
    "planes of blocks": (planes, "blocks outside"),
    "transposed": (transposed, "blocks outside"),
    "pools": (planes, "a pool each"),
}
"""For any roles, those of scales and latents too: what is in a page, and where pages lie."""


def by_hand(d: Descriptor, name: str, tokens: int, blocks: int = 6) -> Descriptor:
    """One of `BY_HAND` for the roles of `d`."""
    (group,) = d.groups
    fill, where = BY_HAND[name]
    roles = tuple(
        replace(role, shape=role.shape | {"N": tokens})
        for role in sorted(group.roles, key=lambda role: role.role)
    )
    found: list[Role] = []
    pools: list[Pool] = []
    places: list[Place] = []
    end = 0
    for plane in fill(roles):
        end = 0 if where == "a pool each" else end
        more, end = laid(plane, end, len(places))
        found += more
        if where == "a pool each":
            pool, place = pages(f"{more[0].role}s", end // 8, len(group.layers), blocks, where)
            pools.append(pool)
            places.append(place)
    if not places:
        pool, place = pages("kv", end // 8, len(group.layers), blocks, where)
        pools.append(pool)
        places.append(place)
    away = replace(
        group, tokens_per_block=tokens, places=tuple(places), roles=tuple(found), null_block=0
    )
    return replace(d, pools=tuple(pools), groups=(away,))


def pages(name: str, page: int, layers: int, blocks: int, where: str) -> tuple[Pool, Place]:
    """A pool with 40 bytes before its first page."""
    block, layer = (page, page * blocks)
    if where == "blocks outside":
        block, layer = (page * layers, page)
    pool = Pool(name, "host", 40 + page * layers * blocks, blocks)
    return pool, Place((name,), block, layer, offset=40, page_bytes=page)


# --- there and back


class Journey(NamedTuple):
    """One placement between, and the plans there and back."""

    name: str
    away: Descriptor
    ids: list[int]
    there: Plan
    back: Plan


def planned(src: Descriptor, dst: Descriptor, blocks: Blocks, *, is_proven: bool = True) -> Plan:
    plan = Pair.compile(src, dst, allow_lossy=True).plan(blocks)
    if is_proven:
        prove(plan, src, dst, blocks)
    return plan


def journey(
    d: Descriptor, away: Descriptor, name: str, ids: list[int], *, is_proven: bool = True
) -> Journey:
    check(away)
    there = Blocks({0: REAL}, {0: ids}, num_tokens(d))
    back = Blocks({0: ids}, {0: REAL}, num_tokens(d))
    return Journey(
        name,
        away,
        ids,
        planned(d, away, there, is_proven=is_proven),
        planned(away, d, back, is_proven=is_proven),
    )


@cache
def journeys(name: str) -> list[Journey]:
    """A record's, through every placement in blocks of its own size and of another.

    A proof takes ten times as long as all else, so one journey of `PROVEN_OF` is proven, of each
    record others: at least one through every placement. Every bit that any moves is compared.
    """
    d = real(name)
    tokens = d.groups[0].tokens_per_block
    is_plain = {role.role for role in d.groups[0].roles} == {"k", "v"}
    make, names = (keys_and_values, PLACEMENTS) if is_plain else (by_hand, BY_HAND)
    turn = list(RECORDS).index(name)
    found: list[Journey] = []
    for number, between in enumerate(names):
        for times in (1, (2, 0.5)[(number + turn) % 2]):
            is_proven = (len(found) + turn) % PROVEN_OF == 0
            away, text = make(d, between, int(tokens / times)), f"{between} of {tokens / times:g}"
            found.append(journey(d, away, text, AWAY[times], is_proven=is_proven))
    return found


def num_tokens(d: Descriptor) -> int:
    return len(REAL) * d.groups[0].tokens_per_block


def page_of(case: dict[str, Any], d: Descriptor) -> oracle.Memory:
    """The record, with noise for the tokens that nobody wrote: alike as they are, none was missed.

    Were an element not where `d` says, the noise would spoil what was written.
    """
    memory = {"kv": unpacked(case["pool"], "u1").copy()}
    chance = np.random.default_rng(7)
    for role in d.groups[0].roles:
        bits = oracle.read_elements(d, memory, d.groups[0].id, role.role, REAL)
        noise = np.frombuffer(chance.bytes(bits.nbytes), bits.dtype).reshape(bits.shape).copy()
        kept = tokens_of(noise, role)[case["layer"]]
        rows = np.divmod(rows_of(case), d.groups[0].tokens_per_block)
        kept[rows] = tokens_of(bits, role)[case["layer"]][rows]
        oracle.write_elements(d, memory, d.groups[0].id, role.role, REAL, noise)
    return memory


def tokens_of(elements: NDArray[Any], role: Role) -> NDArray[Any]:
    """A view `[layer, block, token, ...]`."""
    return np.moveaxis(elements, 2 + ROLES[role.role].axes.index("N"), 2)


def rows_of(case: dict[str, Any]) -> NDArray[np.int64]:
    """Tokens that were written, counted in the request."""
    first: int = REAL[0] * case["spec"]["block_size"]
    return np.array(case["slots"], np.int64) - first


def assert_values(
    case: dict[str, Any], d: Descriptor, memory: oracle.Memory, ids: list[int]
) -> None:
    """What vLLM was given to write is what the blocks hold."""
    for role in case["written"]:
        with np.errstate(invalid="ignore"):  # noise may be any NaN
            values = by_token(d, memory, role, ids, oracle.read_values)
        found, due = values[case["layer"]][rows_of(case)], written(case, role)
        if case["spec"]["dtype"] == "torch.int8":  # nearest of 255 steps
            step = np.abs(due).max(axis=-1, keepdims=True) / 127
            assert np.all(np.abs(found - due) <= 0.501 * step)
        else:
            np.testing.assert_array_equal(found, due)


def assert_same_bits(
    at: Journey, between: oracle.Memory, d: Descriptor, page: oracle.Memory
) -> None:
    """Every element of every token and layer."""
    for role in d.groups[0].roles:
        found, due = (
            by_token(of, memory, role.role, ids, oracle.read_elements)
            for of, memory, ids in ((at.away, between, at.ids), (d, page, REAL))
        )
        np.testing.assert_array_equal(found, due, f"{at.name}: {role.role}")


def assert_only(d: Descriptor, memory: oracle.Memory, ids: list[int], tokens: int) -> None:
    """Nothing but the blocks' elements was written."""
    for pool, mask in held(d, {0: ids}, tokens).items():
        assert np.all(memory[pool][~mask] == oracle.FILL), pool


def assert_returned(case: dict[str, Any], page: oracle.Memory, memory: oracle.Memory) -> None:
    """The blocks byte for byte, and around them what was there before."""
    due = np.where(is_page(case), page["kv"], np.uint8(OTHER_FILL))
    np.testing.assert_array_equal(memory["kv"], due)


def travel(
    case: dict[str, Any], page: oracle.Memory, at: Journey, implementation: str
) -> oracle.Memory:
    """There and back; returns what was between."""
    d = real(case["name"])
    between, again = oracle.blank(at.away), oracle.blank(d, OTHER_FILL)
    carry(at.there, page, between, implementation)
    assert_values(case, at.away, between, at.ids)
    assert_only(at.away, between, at.ids, num_tokens(d))
    carry(at.back, between, again, implementation)
    assert_returned(case, page, again)
    return between


@pytest.mark.parametrize("implementation", IN_PROCESS)
@pytest.mark.parametrize("name", RECORDS)
def test_pages_come_back_from_every_placement(name: str, implementation: str) -> None:
    case = RECORDS[name]
    d = real(name)
    page = page_of(case, d)
    for at in journeys(name):
        assert_same_bits(at, travel(case, page, at, implementation), d, page)
    assert len(journeys(name)) in {2 * len(PLACEMENTS), 2 * len(BY_HAND)}


def test_the_smallest_comes_back_by_the_references_loops() -> None:
    case = RECORDS[SMALLEST]
    d = real(SMALLEST)
    page = page_of(case, d)
    for at in journeys(SMALLEST):
        assert_same_bits(at, travel(case, page, at, "reference"), d, page)
    sizes = {name: unpacked(RECORDS[name]["pool"], "u1").size for name in PLAIN}
    assert min(sizes, key=lambda name: sizes[name]) == SMALLEST


@pytest.mark.parametrize("implementation", IN_PROCESS)
@pytest.mark.parametrize("name", RECORDS)
def test_the_recorded_bytes_alone_come_back(name: str, implementation: str) -> None:
    """Without noise: the pool as it is on file, marks of untouched bytes and all."""
    case = RECORDS[name]
    page = {"kv": unpacked(case["pool"], "u1").copy()}
    for at in journeys(name)[::5]:
        travel(case, page, at, implementation)


@pytest.mark.parametrize("name", RECORDS)
def test_the_blocks_are_full_of_elements(name: str) -> None:
    """So that whole blocks can be asked back, whoever moved them."""
    case = RECORDS[name]
    d = real(name)
    mask = held(d, {0: REAL}, num_tokens(d))
    np.testing.assert_array_equal(mask["kv"], is_page(case))
    assert {slot // case["spec"]["block_size"] for slot in case["slots"]} == set(REAL)


@cache
def ranks(name: str) -> tuple[list[Descriptor], list[Plan], list[Plan]]:
    """Three that each hold a part, and plans to each and from each: proven."""
    d = real(name)
    parts = (("rocm", 0, (0, 1)), ("LBNHC", 1, (0,)), ("odd", 1, (1,)))
    found = [part(d, *each) for each in parts]
    there = Blocks({0: REAL}, {0: AWAY[1]}, num_tokens(d))
    back = Blocks({0: AWAY[1]}, {0: REAL}, num_tokens(d))
    cover = Cover.compile(found, d)
    plans = []
    for plan, source in zip(cover.plan(back), cover.sources, strict=True):
        assert plan is not None
        assert source is not None
        prove(plan, source, d, back)
        plans.append(plan)
    return found, [planned(d, rank, there) for rank in found], plans


@pytest.mark.parametrize("implementation", IN_PROCESS)
@pytest.mark.parametrize("name", PLAIN)
def test_pages_come_back_from_ranks_that_each_hold_a_part(name: str, implementation: str) -> None:
    """Head 0; head 1 of the first layer; head 1 of the second: each in a placement of its own."""
    case = RECORDS[name]
    d = real(name)
    page, again = page_of(case, d), oracle.blank(d, OTHER_FILL)
    for rank, there, back in zip(*ranks(name), strict=True):
        check(rank)
        memory = oracle.blank(rank)
        carry(there, page, memory, implementation)
        assert_only(rank, memory, AWAY[1], num_tokens(d))
        carry(back, memory, again, implementation)
    assert_returned(case, page, again)


def part(d: Descriptor, name: str, head: int, layers: tuple[int, ...]) -> Descriptor:
    """One head of some layers, in one of the eleven."""
    (group,) = d.groups
    k = next(role for role in group.roles if role.role == "k")
    shape = Shape(len(layers), 6, 1, group.tokens_per_block, k.shape["D"], k.dtype)
    away = with_layers(with_heads(PLACEMENTS[name](shape), head, 2), layers[0])
    params = {
        name: scales[layers[0] : layers[-1] + 1]
        for name, scales in group.codec.params.items()
        if isinstance(scales, list)
    }
    return replace(regroup(away, codec=replace(group.codec, params=params)), model=d.model)


# --- as other numbers


def as_f32(d: Descriptor, name: str) -> Descriptor:
    (group,) = d.groups
    k = next(role for role in group.roles if role.role == "k")
    shape = Shape(len(group.layers), 6, k.shape["H"], group.tokens_per_block, k.shape["D"], "f32")
    return replace(PLACEMENTS[name](shape), model=d.model)


@cache
def through_f32(name: str) -> list[Journey]:
    d = real(name)
    return [
        journey(d, as_f32(d, between), between, AWAY[1], is_proven=between == "odd")
        for between in ("LBNHC", "vllm_cpu", "odd")
    ]


@pytest.mark.parametrize("implementation", IN_PROCESS)
@pytest.mark.parametrize("name", [each for each in PLAIN if each != "cpu-f32"])
def test_pages_come_back_from_f32(name: str, implementation: str) -> None:
    """Every 16- and 8-bit number is one of f32, and the nearest to it is itself."""
    case = RECORDS[name]
    page = {"kv": unpacked(case["pool"], "u1").copy()}
    for at in through_f32(name):
        assert compare(real(name), at.away).verdict == "lossless"
        travel(case, page, at, implementation)


@pytest.mark.parametrize("implementation", ["reference", *IN_PROCESS])
@pytest.mark.parametrize("name", [n for n, case in RECORDS.items() if is_scaled_by_row(case)])
def test_rows_scaled_by_vllm_become_f32(name: str, implementation: str) -> None:
    """One way: who scales anew need not come to the same scale."""
    case = RECORDS[name]
    d = real(name)
    page = {"kv": unpacked(case["pool"], "u1").copy()}
    for between in ("LBNHC", "sglang", "trtllm"):
        away = as_f32(d, between)
        memory = oracle.blank(away)
        plan = planned(d, away, Blocks({0: REAL}, {0: AWAY[1]}, num_tokens(d)))
        carry(plan, page, memory, implementation)
        assert_values(case, away, memory, AWAY[1])
        assert_only(away, memory, AWAY[1], num_tokens(d))
        for role in ("k", "v"):
            found, due = (
                by_token(of, bytes_, role, ids, oracle.read_values)
                for of, bytes_, ids in ((away, memory, AWAY[1]), (d, page, REAL))
            )
            np.testing.assert_array_equal(found, due)
