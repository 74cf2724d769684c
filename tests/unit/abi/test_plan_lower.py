"""Plans as arrays: each row against the copies themselves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from support.abi_moves import runs
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.errors import PlanError
from transload_abi.plan import Blocks, Pair, Plan, copies, lower, num_runs
from transload_abi.plan.lower import kernel_table, nixl_descriptors, nixl_strided, run_list

Run = tuple[str, int, str, int, int]


def planned(src: str, dst: str, tokens: tuple[int, int] = (4, 4)) -> Plan:
    shape = Shape(layers=2, blocks=16, heads=2, size=8)
    sides = [
        PLACEMENTS[name](shape._replace(tokens=count))
        for name, count in zip((src, dst), tokens, strict=True)
    ]
    lists = [[5, 6, 7, 2, 9, 10, 3][: -(-14 // count)] for count in tokens]
    return Pair.compile(*sides).plan(Blocks({0: lists[0]}, {0: lists[1]}, 14))


def all_runs(plan: Plan) -> list[Run]:
    return sorted(
        (copy.src_pool, src, copy.dst_pool, dst, copy.run_bytes)
        for copy in copies(plan)
        for src, dst in runs(copy)
    )


PAIRS = [
    planned("LBNHC", "LBHNC"),
    planned("BLNHC", "BLNHC"),
    planned("BLNHC", "BLNHC", (2, 2)),
    planned("LBNHC", "LBHNC", (2, 2)),
    planned("sglang", "odd"),
    planned("vllm_cpu", "sglang", (4, 2)),
    planned("LBHNC", "odd", (2, 4)),
    planned("odd", "rocm", (8, 4)),
]


@pytest.mark.parametrize("plan", PAIRS)
def test_run_list(plan: Plan) -> None:
    table = run_list(plan)
    found = [
        (table.src_pools[row[0]], int(row[1]), table.dst_pools[row[2]], int(row[3]), int(row[4]))
        for row in zip(
            table.src_pool, table.src, table.dst_pool, table.dst, table.num_bytes, strict=True
        )
    ]
    assert sorted(found) == all_runs(plan)
    assert len(found) == num_runs(plan)


BASES = {
    "kv": (7 << 32, 3),
    "odd": (9 << 32, 4),
    **{f"k{layer}": (1 << 40 | layer << 20, layer) for layer in range(2)},
    **{f"v{layer}": (1 << 41 | layer << 20, layer) for layer in range(2)},
}


@pytest.mark.parametrize("plan", PAIRS)
def test_nixl_descriptors(plan: Plan) -> None:
    src, dst = nixl_descriptors(plan, BASES, BASES)
    assert src.dtype == dst.dtype == np.uint64
    assert src.shape == dst.shape == (num_runs(plan), 3)
    due = sorted(
        (BASES[a][0] + one, size, BASES[a][1], BASES[b][0] + two, size, BASES[b][1])
        for a, one, b, two, size in all_runs(plan)
    )
    assert sorted(map(tuple, np.hstack([src, dst]).tolist())) == due


@pytest.mark.parametrize("plan", PAIRS)
def test_nixl_strided(plan: Plan) -> None:
    src, dst = nixl_strided(plan, BASES, BASES)
    assert src.shape == dst.shape == (len(src), 5)
    found = []
    for ours, theirs in zip(src.tolist(), dst.tolist(), strict=True):
        assert ours[3] == theirs[3]
        assert ours[1] == theirs[1]
        for turn in range(ours[3]):
            one, two = ours[0] + turn * ours[2], theirs[0] + turn * theirs[2]
            found.append((one, ours[1], ours[4], two, theirs[1], theirs[4]))
    due = sorted(
        (BASES[a][0] + one, size, BASES[a][1], BASES[b][0] + two, size, BASES[b][1])
        for a, one, b, two, size in all_runs(plan)
    )
    assert sorted(found) == due


def test_strided_rows_are_few() -> None:
    big = Shape(layers=32, blocks=8, heads=8, tokens=16, size=128)
    sides = PLACEMENTS["LBNHC"](big), PLACEMENTS["LBHNC"](big)
    plan = Pair.compile(*sides).plan(Blocks({0: [3]}, {0: [4]}, 16))
    src, _ = nixl_strided(plan, BASES, BASES)
    assert len(src) == num_runs(plan) // 32 == 128


def test_a_run_by_itself_strides_by_its_length() -> None:
    src, _ = nixl_strided(planned("BLNHC", "BLNHC"), BASES, BASES)
    assert src[:, 2].tolist() == src[:, 1].tolist()
    assert src[:, 3].tolist() == [1] * len(src)


@pytest.mark.parametrize("plan", PAIRS)
def test_kernel_table(plan: Plan) -> None:
    table = kernel_table(plan)
    assert table.rows.dtype == table.loops.dtype == np.int64
    found = []
    for src_pool, dst_pool, src, dst, size, number in table.rows.tolist():
        loops = table.loops[number].tolist()
        for turns in product(*(range(count) for count, _, _ in loops)):
            one = src + sum(turn * loop[1] for turn, loop in zip(turns, loops, strict=True))
            two = dst + sum(turn * loop[2] for turn, loop in zip(turns, loops, strict=True))
            found.append((table.src_pools[src_pool], one, table.dst_pools[dst_pool], two, size))
    assert sorted(found) == all_runs(plan)
    assert len(table.rows) == len(list(copies(plan)))


def test_an_empty_plan_has_empty_arrays() -> None:
    d = PLACEMENTS["LBNHC"](Shape())
    plan = Pair.compile(d, d).plan(Blocks({0: []}, {0: []}, 0))
    for each in (plan, Plan(())):
        assert [rows.shape for rows in nixl_descriptors(each, BASES, BASES)] == [(0, 3)] * 2
        assert [rows.shape for rows in nixl_strided(each, BASES, BASES)] == [(0, 5)] * 2
        assert kernel_table(each).rows.shape == (0, 6)
        assert run_list(each).src.shape == (0,)


def test_a_pool_without_a_base_is_named() -> None:
    with pytest.raises(PlanError, match=r"pools\.kv: no base address"):
        nixl_descriptors(planned("LBNHC", "LBNHC"), BASES, {})


def test_addresses_beyond_half_of_the_range() -> None:
    high = {"kv": ((1 << 64) - (1 << 30), 0)}
    src, _ = nixl_descriptors(planned("BLNHC", "BLNHC"), high, high)
    assert int(src[0, 0]) >= (1 << 64) - (1 << 30)


LOWERED: dict[str, Callable[[Plan], int]] = {
    "run list": lambda plan: len(run_list(plan).src),
    "nixl": lambda plan: len(nixl_descriptors(plan, BASES, BASES)[0]),
    "strided": lambda plan: len(nixl_strided(plan, BASES, BASES)[0]),
    "kernel": lambda plan: len(kernel_table(plan).rows),
}


@pytest.mark.parametrize("name", LOWERED)
def test_rows_are_counted_before_they_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned("LBNHC", "LBHNC", (2, 2))
    count = LOWERED[name](plan)
    monkeypatch.setattr(lower, "MAX_ROWS", count)
    LOWERED[name](plan)
    monkeypatch.setattr(lower, "MAX_ROWS", count - 1)
    with pytest.raises(PlanError, match=f"the plan takes more than {count - 1} rows"):
        LOWERED[name](plan)


def test_a_plan_of_very_many_runs_is_not_written_down() -> None:
    shape = Shape(layers=64, blocks=4096, heads=64, tokens=64, size=128)
    pair = Pair.compile(PLACEMENTS["LBNHC"](shape), PLACEMENTS["vllm_cpu"](shape))
    plan = pair.plan(Blocks({0: range(4096)}, {0: range(4096)}, 4096 * 64))
    assert num_runs(plan) > 1 << 36
    with pytest.raises(PlanError, match="more than 33554432 rows"):
        run_list(plan)
