"""Reach and overlaps, compared with lists of every byte."""

from __future__ import annotations

import itertools
import random

import torch

from transload_kernels import extents
from transload_kernels.extents import Rows, overlap_between, overlap_within, reach, rows


def touched(offsets: list[int], loops: list[tuple[int, int]], run_bytes: int) -> list[int]:
    """Every byte, as often as it is touched."""
    steps = itertools.product(*(range(count) for count, _ in loops))
    sums = [sum(i * loop[1] for i, loop in zip(each, loops, strict=True)) for each in steps]
    return [at + step + byte for at in offsets for step in sums for byte in range(run_bytes)]


def any_rows(rng: random.Random) -> tuple[list[int], list[tuple[int, int]], int]:
    run = rng.randint(1, 4)
    loops = [(rng.randint(1, 3), rng.choice((-1, 1)) * rng.randint(1, 20)) for _ in range(2)]
    return [rng.randrange(60) for _ in range(rng.randint(1, 3))], loops, run


def made(text: tuple[list[int], list[tuple[int, int]], int]) -> Rows:
    offsets, loops, run = text
    return rows(torch.tensor(offsets), loops, run)


def test_reach_is_the_first_and_the_last_byte() -> None:
    rng = random.Random(1)
    for _ in range(200):
        _, loops, run = any_rows(rng)
        every = touched([0], loops, run)
        assert reach(loops, run) == (min(every), max(every) + 1)


def test_reach_does_not_overflow() -> None:
    assert reach([(1 << 60, 1 << 60)], 1) == (0, ((1 << 60) - 1) * (1 << 60) + 1)


def test_rows_that_share_a_byte_are_found_and_no_others() -> None:
    rng = random.Random(2)
    seen = set()
    for _ in range(1500):
        one, other = any_rows(rng), any_rows(rng)
        every = touched(*one) + touched(*other)
        due = len(set(every)) < len(every)
        assert overlap_within([made(one), made(other)]) is due, (one, other)
        seen.add(due)
    assert seen == {True, False}


def test_sides_that_share_a_byte_are_found_and_no_others() -> None:
    rng = random.Random(3)
    seen = set()
    for _ in range(1500):
        one, other = any_rows(rng), any_rows(rng)
        due = not set(touched(*one)).isdisjoint(touched(*other))
        assert overlap_between(made(one), made(other)) is due, (one, other)
        seen.add(due)
    assert seen == {True, False}


def test_a_source_that_stands_still_is_not_opened() -> None:
    still = rows(torch.tensor([0]), [(1 << 40, 0)], 4)
    assert overlap_between(rows(torch.tensor([4]), [], 4), still) is False
    assert overlap_between(rows(torch.tensor([3]), [], 4), still) is True
    assert overlap_within([still]) is True


def test_sources_may_lie_within_each_other() -> None:
    sources = Rows(torch.tensor([0, 10]), torch.tensor([100, 2]))
    assert overlap_between(Rows(torch.tensor([50]), torch.tensor([1])), sources) is True
    assert overlap_between(Rows(torch.tensor([100]), torch.tensor([1])), sources) is False


def test_nothing_is_said_beyond_the_budget() -> None:
    # Two combs, of which one lies between the teeth of the other.
    many = extents.MAX_HULLS + 1
    loops = [(many, 8), (3, 2)]
    one, other = (rows(torch.tensor([at]), loops, 1) for at in (0, 1))
    assert overlap_within([one, other]) is None
    assert overlap_between(one, other) is None


def test_large_and_plain_rows_need_no_budget() -> None:
    many = 1 << 40
    plain = rows(torch.tensor([0, 1 << 50]), [(many, 64), (4, 16)], 8)
    assert overlap_within([plain]) is False
    assert overlap_within([rows(torch.tensor([0]), [(many, 64), (5, 16)], 8)]) is None
    assert len(rows(torch.tensor([0]), [(many, 64), (4, 16)], 16).loops) == 0
