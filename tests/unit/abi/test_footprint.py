"""Footprints: what is settled without writing loops out, and what stops at the budget."""

import pytest

from transload_abi.errors import LimitExceeded
from transload_abi.footprint import Budget, Footprint, normalize, overlap, whole_bytes
from transload_abi.limits import MAX_PIECES

BLOCKS = 400_000


@pytest.mark.parametrize(
    ("footprint", "normal"),
    [
        (Footprint(5, 8), Footprint(5, 8)),
        (Footprint(5, 8, ((1, 99),)), Footprint(5, 8)),
        (Footprint(5, 8, ((4, 8),)), Footprint(5, 32)),
        (Footprint(5, 8, ((3, 32), (4, 8))), Footprint(5, 96)),
        (Footprint(5, 8, ((2, 64), (2, 32))), Footprint(5, 8, ((4, 32),))),
        (Footprint(5, 8, ((2, 100), (2, 32))), Footprint(5, 8, ((2, 32), (2, 100)))),
        (Footprint(5, 8, ((2, 0), (2, 8))), Footprint(5, 8, ((2, 0), (2, 8)))),
    ],
)
def test_normalize(footprint: Footprint, normal: Footprint) -> None:
    assert normalize(footprint) == normal


@pytest.mark.parametrize(
    "footprints",
    [
        pytest.param([], id="none"),
        pytest.param([Footprint(0, 8), Footprint(8, 8)], id="side by side"),
        pytest.param(
            [
                Footprint(base, 16, ((8, 32), (100, 8192), (BLOCKS, 819200)))
                for base in (0, 16, 256, 272)
            ],
            id="cells in layers in blocks",
        ),
        pytest.param(
            [
                Footprint(base, 16, ((8, 32), (BLOCKS, 8192), (100, 8192 * BLOCKS)))
                for base in (0, 16, 256, 272)
            ],
            id="cells in blocks in layers",
        ),
        pytest.param(
            [Footprint(0, 8, ((BLOCKS * 16, 64),)), Footprint(8, 8, ((4, 64), (BLOCKS, 1024)))],
            id="one loop where the other has two",
        ),
        pytest.param(
            [Footprint(0, 64 * BLOCKS), Footprint(64 * BLOCKS, 8, ((BLOCKS, 64),))],
            id="a run before a comb",
        ),
        pytest.param([Footprint(0, 8, ((3, 16), (3, 24)))], id="not nested and yet disjoint"),
        pytest.param(
            [
                # Elements of four bits, and scales of which four tokens by eight are a tile.
                Footprint(0, 4, ((128, 4), (16, 512), (BLOCKS, 9216))),
                Footprint(8192, 8, ((4, 32), (2, 128), (4, 8), (4, 256), (BLOCKS, 9216))),
            ],
            id="nibbles before tiles of scales",
        ),
    ],
)
def test_nothing_is_shared_and_little_is_looked_at(footprints: list[Footprint]) -> None:
    assert overlap(footprints, Budget(60)) is None


@pytest.mark.parametrize(
    ("footprints", "pair"),
    [
        pytest.param([Footprint(0, 8), Footprint(7, 8)], (0, 1), id="a bit"),
        pytest.param([Footprint(9, 1), Footprint(4, 1), Footprint(9, 1)], (0, 2), id="the same"),
        pytest.param([Footprint(0, 8, ((2, 0),))], (0, 0), id="stride zero"),
        pytest.param([Footprint(0, 8, ((2, 7),))], (0, 0), id="stride below the size"),
        pytest.param([Footprint(0, 8, ((2, 64), (2, 64)))], (0, 0), id="a stride twice"),
        pytest.param([Footprint(0, 8, ((4, 16), (3, 24)))], (0, 0), id="not nested"),
        pytest.param(
            [Footprint(0, 8, ((BLOCKS, 512), (100, 512 * (BLOCKS - 1))))],
            (0, 0),
            id="layers a block too close",
        ),
        pytest.param(
            [Footprint(base, 8, ((4, 16), (BLOCKS, 64))) for base in (0, 8, 24)],
            (1, 2),
            id="deep inside of every block",
        ),
        pytest.param(
            [Footprint(0, 64 * BLOCKS), Footprint(64 * BLOCKS - 1, 8, ((BLOCKS, 64),))],
            (0, 1),
            id="a run into a comb",
        ),
    ],
)
def test_what_is_shared_is_named(footprints: list[Footprint], pair: tuple[int, int]) -> None:
    assert overlap(footprints, Budget(200)) == pair


def test_what_would_be_written_out_too_far_is_refused_before() -> None:
    skewed = [Footprint(0, 8, ((1 << 40, 1000), (2, 3500)))]
    budget = Budget()
    with pytest.raises(LimitExceeded, match="too irregular"):
        overlap(skewed, budget)
    assert 0 < budget.left <= MAX_PIECES


def test_one_budget_serves_several_questions() -> None:
    budget = Budget(3)
    assert overlap([Footprint(0, 8), Footprint(8, 8)], budget) is None
    with pytest.raises(LimitExceeded):
        overlap([Footprint(0, 8), Footprint(8, 8)], budget)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (Footprint(16, 16, ((3, 32),)), [Footprint(16, 16, ((3, 32),))]),
        (Footprint(4, 4), [Footprint(0, 8)]),
        (Footprint(4, 8), [Footprint(0, 16)]),
        (Footprint(0, 4, ((4, 8),)), [Footprint(0, 8, ((4, 8),))]),
        (
            Footprint(0, 4, ((5, 12),)),
            [Footprint(0, 8, ((3, 24),)), Footprint(8, 8, ((2, 24),))],
        ),
    ],
)
def test_bytes_that_hold_a_footprints_bits(bits: Footprint, expected: list[Footprint]) -> None:
    assert whole_bytes(bits) == expected
