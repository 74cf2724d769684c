"""Digits of one axis, their ranges, and the loops that run over both sides."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transload_abi.plan.axes import (
    Digits,
    Nest,
    axis_nests,
    compress,
    digits,
    is_additive,
    offset,
    restrict,
    spans,
)
from transload_abi.types import Role


def points(nests: list[Nest]) -> list[tuple[int, int]]:
    """All offsets, in the order of the loops."""
    found = []
    for src, dst, loops in nests:
        for turns in product(*(range(count) for count, _, _ in loops)):
            steps = list(zip(turns, loops, strict=True))
            found.append(
                (
                    src + sum(turn * loop[1] for turn, loop in steps),
                    dst + sum(turn * loop[2] for turn, loop in steps),
                )
            )
    return found


@st.composite
def axes(draw: st.DrawFn, extent: int) -> Digits:
    """Digits of an axis with an extent."""
    rows, div, stride = [], 1, draw(st.sampled_from([1, 2, 8]))
    while div < extent:
        count = draw(st.sampled_from([n for n in range(2, extent + 1) if extent // div % n == 0]))
        rows.append((div, count, stride))
        stride = stride * count + draw(st.sampled_from([0, 1, 8]))
        div *= count
    return tuple(rows)


@given(st.data(), st.sampled_from([1, 2, 4, 6, 12, 16, 30]))
def test_nests_visit_every_index_once(data: st.DataObject, extent: int) -> None:
    src, dst = data.draw(axes(extent)), data.draw(axes(extent))
    count = data.draw(st.integers(1, extent))
    ours, theirs = (data.draw(st.integers(0, extent - count)) for _ in range(2))
    due = [(offset(src, ours + i), offset(dst, theirs + i)) for i in range(count)]
    assert sorted(points(axis_nests(src, ours, dst, theirs, count))) == sorted(due)


@given(st.data(), st.sampled_from([1, 2, 4, 6, 12, 16, 30]))
def test_spans_have_digits_on_all_axes(data: st.DataObject, extent: int) -> None:
    count = data.draw(st.integers(1, extent))
    both = [(data.draw(axes(extent)), data.draw(st.integers(0, extent - count))) for _ in range(2)]
    found = list(spans(both, count))
    assert [one for first, length in found for one in range(first, first + length)] == [
        *range(count)
    ]
    for axis, start in both:
        assert all(restrict(axis, start + first, length) is not None for first, length in found)
    if all(restrict(axis, start, count) is not None for axis, start in both):
        assert found == [(0, count)]


def test_spans_are_few() -> None:
    axis = ((1, 3, 16), (3, 1000, 64), (3000, 20, 1 << 20))
    assert [*spans([(axis, 1)], 50_000)] == [(0, 2), (2, 2997), (2999, 45_000), (47_999, 2001)]
    assert [*spans([(axis, 0), (axis, 3000)], 50_000)] == [(0, 48_000), (48_000, 1998), (49_998, 2)]


@given(st.data(), st.sampled_from([2, 4, 6, 12, 16]))
def test_a_restricted_range_is_counted_from_its_start(data: st.DataObject, extent: int) -> None:
    axis = data.draw(axes(extent))
    count = data.draw(st.integers(1, extent))
    start = data.draw(st.integers(0, extent - count))
    kept = restrict(axis, start, count)
    if kept is not None:
        due = [offset(axis, start + i) - offset(axis, start) for i in range(count)]
        assert [offset(kept, i) for i in range(count)] == due


@given(st.data(), st.sampled_from([4, 6, 12, 16]))
def test_additive_axes_are(data: st.DataObject, extent: int) -> None:
    axis = data.draw(axes(extent))
    step = data.draw(st.sampled_from([n for n in range(1, extent + 1) if extent % n == 0]))
    if is_additive(axis, step):
        for first, inside in product(range(0, extent, step), range(step)):
            assert offset(axis, first + inside) == offset(axis, first) + offset(axis, inside)


@pytest.mark.parametrize(
    ("step", "expected"), [(1, True), (2, True), (3, False), (4, True), (6, False), (12, True)]
)
def test_where_an_axis_of_two_by_two_by_three_may_be_cut(step: int, expected: bool) -> None:
    assert is_additive(((1, 2, 1), (2, 2, 5), (4, 3, 100)), step) == expected


def test_digits_that_continue_one_another_are_one() -> None:
    terms = (("N", 2, 4, 16), ("N", 1, 2, 8), ("N", 8, 2, 500), ("H", 1, 2, 4))
    role = Role("k", "bf16", 16, {"H": 2, "N": 16, "D": 1}, terms)
    assert digits(role, "N") == ((1, 8, 8), (8, 2, 500))
    assert digits(role, "H") == ((1, 2, 4),)
    assert digits(role, "D") == ()


def test_a_range_amid_a_digit_has_no_digits() -> None:
    axis = ((1, 2, 1), (2, 4, 10))
    assert restrict(axis, 1, 2) is None
    assert restrict(axis, 0, 3) is None
    assert restrict(axis, 2, 4) == ((1, 2, 1), (2, 2, 10))
    assert restrict(axis, 3, 1) == ()


def test_one_digit_on_both_sides_is_one_loop() -> None:
    assert axis_nests(((1, 8, 16),), 2, ((1, 4, 32),), 0, 4) == [Nest(32, 0, ((4, 16, 32),))]


def test_different_digits_meet_in_the_finer_ones() -> None:
    (nest,) = axis_nests(((1, 4, 1), (4, 4, 100)), 0, ((1, 8, 1), (8, 2, 50)), 0, 16)
    assert nest.loops == ((2, 200, 50), (2, 100, 4), (4, 1, 1))


def test_digits_that_do_not_divide_each_other_are_still_few_nests() -> None:
    nests = axis_nests(((1, 4, 1), (4, 3, 100)), 0, ((1, 6, 1), (6, 2, 100)), 0, 12)
    assert len(nests) < 6
    assert all(nest.loops[-1] == (2, 1, 1) for nest in nests)


def test_even_distances_become_loops_of_loops() -> None:
    spots = [Nest(a * 100 + b, a * 50 + b * 5) for a in range(3) for b in range(4)]
    assert compress(spots) == [Nest(0, 0, ((3, 100, 50), (4, 1, 5)))]


def test_a_spot_by_itself_does_not_break_the_run_after_it() -> None:
    spots = [Nest(at, at) for at in (0, 10, 11, 12, 13)]
    assert compress(spots) == [Nest(0, 0), Nest(10, 10, ((4, 1, 1),))]
    assert compress(spots[:4]) == [Nest(0, 0), Nest(10, 10, ((3, 1, 1),))]
    assert compress(spots[:3]) == [Nest(0, 0, ((2, 10, 10),)), Nest(11, 11)]


def test_no_loop_runs_backwards() -> None:
    assert compress([Nest(8, 0), Nest(0, 8)]) == [Nest(8, 0), Nest(0, 8)]
