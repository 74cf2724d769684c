"""Ranges of a read that have come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transload_abi.wire.spans import Spans


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [(0, 10, False), (9, 11, True), (12, 13, True), (19, 21, True), (20, 25, False), (5, 30, True)],
)
def test_overlap(first: int, end: int, expected: bool) -> None:
    spans = Spans()
    spans.add(10, 20)
    assert spans.overlaps(first, end) is expected


@given(st.permutations(range(12)), st.data())
def test_neighbours_are_joined_in_any_order(order: list[int], data: st.DataObject) -> None:
    spans = Spans()
    come: set[int] = set()
    for at in order[: data.draw(st.integers(1, 12))]:
        assert not spans.overlaps(at * 5, at * 5 + 5)
        expected = spans.len_with(at * 5, at * 5 + 5)
        spans.add(at * 5, at * 5 + 5)
        come.add(at)
        assert len(spans) == expected == sum(each - 1 not in come for each in come)
        assert spans.num_bytes == 5 * len(come)
        assert all(spans.overlaps(each * 5 + 4, each * 5 + 6) for each in come)
