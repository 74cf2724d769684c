"""What a caller may ask of a pair or a cover, and what is an error of the caller's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from support.abi_moves import regroup, with_heads, with_layers, with_tokens
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.errors import PlanError
from transload_abi.limits import MAX_INTEGER
from transload_abi.plan import Blocks, Cover, Pair
from transload_abi.proof import prove
from transload_abi.types import Descriptor

BLOCKS = Blocks({0: [1, 2]}, {0: [3, 4]}, 8)


def cache(tokens: int = 4, **fields: object) -> Descriptor:
    d = PLACEMENTS["LBNHC"](Shape(layers=2, blocks=12, heads=2, tokens=tokens, size=8))
    return regroup(d, null_block=0, **fields)


def refusal(plan: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(PlanError) as error:
        plan()
    return error.value.path, str(error.value)


def sequences(pair: Pair, blocks: Blocks) -> list[tuple[int, ...]]:
    return [tuple(each) for batch in pair.plan(blocks).batches for each in batch.sequences]


# --- values of other types


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"num_tokens": "8"}, "blocks.num_tokens", "expected an integer, got '8'"),
        ({"num_tokens": None}, "blocks.num_tokens", "expected an integer, got None"),
        ({"num_tokens": 8.0}, "blocks.num_tokens", "expected an integer, got 8.0"),
        ({"num_tokens": True}, "blocks.num_tokens", "expected an integer, got True"),
        ({"num_tokens": 1 << 60}, "blocks.num_tokens", "expected a number below 2^53"),
        ({"num_tokens": -(10**5000)}, "blocks.num_tokens", "expected a number below 2^53"),
        ({"num_tokens": -1}, "", "tokens 0 to -1: 0 <= first_token"),
        ({"first_token": 4.0}, "blocks.first_token", "expected an integer, got 4.0"),
        ({"num_encoder_tokens": "1"}, "blocks.num_encoder_tokens", "got '1'"),
        ({"num_encoder_tokens": False}, "blocks.num_encoder_tokens", "got False"),
        ({"src": None}, "blocks.src", "expected block lists by table"),
        ({"dst": [[3, 4]]}, "blocks.dst", "expected block lists by table"),
        ({"src": {0: [True, 2]}}, "blocks.src[0]", "block ids must be integers"),
        ({"src": {0: iter([1, 2])}}, "blocks.src[0]", "expected a list of block ids"),
        ({"src": {0: {1, 2}}}, "blocks.src[0]", "expected a list of block ids"),
        ({"dst": {0: {1: 2, 2: 3}}}, "blocks.dst[0]", "expected a list of block ids"),
        ({"dst": {0: [10**5000, 3]}}, "blocks.dst[0][0]", "block beyond 2^53: the pool has 12"),
    ],
)
def test_what_is_no_request(changes: dict[str, object], path: str, words: str) -> None:
    pair = Pair.compile(cache(), cache())
    at, message = refusal(lambda: pair.plan(BLOCKS._replace(**changes)))  # type: ignore[arg-type]
    assert at == path
    assert words in message


@pytest.mark.parametrize("part", [(0, 0), (1, 0), (2, 2), (-1, 2), (0, 1.5), (False, 1)])
def test_shares_that_are_none(part: tuple[int, int]) -> None:
    pair = Pair.compile(cache(), cache())
    assert refusal(lambda: pair.plan(BLOCKS, part))[0] == "part"


# --- lists that begin late in a long request


@pytest.mark.parametrize("num_tokens", [1 << 30, MAX_INTEGER - 7])
def test_the_work_does_not_grow_with_what_a_window_has_left_behind(num_tokens: int) -> None:
    window = cache(kind="sliding_window", window=8)
    last = BLOCKS._replace(num_tokens=num_tokens)
    assert sequences(Pair.compile(window, window), last) == [(1, 3, 2)]
    null = last._replace(src={0: [0, 1, 2]}, dst={0: [5, 3, 4]})
    assert sequences(Pair.compile(window, window), null) == [(1, 3, 2)]
    half = with_tokens(window, 1, 2)
    assert sequences(Pair.compile(window, half), last._replace(dst={0: [4]})) == [
        (5, 16, 1),
        (7, 17, 1),
        (9, 18, 1),
        (11, 19, 1),
    ]


def test_what_is_seen_and_not_there_is_found_at_once() -> None:
    long = BLOCKS._replace(num_tokens=MAX_INTEGER)
    for src, dst in ((cache(), cache()), (cache(), with_tokens(cache(), 1, 2))):
        path, message = refusal(lambda src=src, dst=dst: Pair.compile(src, dst).plan(long))  # type: ignore[misc]
        assert path == "blocks.dst[0]"
        assert "too short: local token 0 has no block" in message


def test_ranks_whose_turns_seldom_meet_are_soon_compared() -> None:
    seldom = with_tokens(cache(), (1 << 16) - 1, 1 << 16, 1 << 20)
    often = with_tokens(cache(), 1, 2)
    one = Pair.compile(seldom, often)
    path, message = refusal(lambda: one.plan(BLOCKS._replace(num_tokens=1 << 40)))
    assert (path, "local token 34359214080 has no block" in message) == ("blocks.dst[0]", True)


# --- ranks without a token that is seen


def test_a_rank_need_not_hold_what_others_are_asked_for() -> None:
    # Token 11 sees the chunk from 8 on; rank 0 has tokens 0 to 7, in the block of all of them.
    chunk = with_tokens(cache(16, kind="chunked_local", window=8), 0, 2, 8)
    pair = Pair.compile(chunk, chunk)
    for held in ([], [0]):
        blocks = Blocks({0: held}, {0: [1]}, 12)
        assert sequences(pair, blocks) == []
        prove(pair.plan(blocks), chunk, chunk, blocks)
    other = with_tokens(cache(16, kind="chunked_local", window=8), 1, 2, 8)
    path, message = refusal(lambda: Pair.compile(other, other).plan(Blocks({0: []}, {0: [1]}, 12)))
    assert (path, "too short" in message) == ("blocks.src[0]", True)


# --- several sources


def two_tables() -> Descriptor:
    """Two layers, each a table of its own, in one pool."""
    (group,) = cache().groups
    pages = [replace(group, id=f"{layer}", layers=(layer,), table=layer) for layer in range(2)]
    return replace(cache(), groups=tuple(pages))


def test_two_sources_do_not_write_one_block_for_two_tables() -> None:
    dst = two_tables()
    stages = [replace(dst, groups=(group,)) for group in dst.groups]
    cover = Cover.compile(stages, dst)
    lists = {0: [1], 1: [2]}
    assert all(cover.plan(Blocks(lists, {0: [3], 1: [4]}, 4)))
    path, message = refusal(lambda: cover.plan(Blocks(lists, {0: [3], 1: [3]}, 4)))
    assert path == "blocks.dst[1]"
    assert "block 3 is in another table's list, too" in message


def test_there_are_blocks_for_each_source() -> None:
    cover = Cover.compile([cache()], cache())
    assert refusal(lambda: cover.plan([BLOCKS] * 2)) == (
        "blocks",
        "blocks: blocks of 2 sources came for 1",
    )


def test_all_sources_are_told_of_one_destination() -> None:
    whole = PLACEMENTS["LBNHC"](Shape(layers=2, blocks=12, heads=2, tokens=4, size=8))
    half = PLACEMENTS["LBNHC"](Shape(layers=2, blocks=12, heads=1, tokens=4, size=8))
    cover = Cover.compile([with_heads(half, first, 2) for first in range(2)], whole)
    assert all(cover.plan([BLOCKS, BLOCKS._replace(src={0: [5, 6]})]))
    path, _ = refusal(lambda: cover.plan([BLOCKS, BLOCKS._replace(dst={0: [4, 3]})]))
    assert path == "blocks.dst[0]"
    assert refusal(lambda: cover.plan([BLOCKS, BLOCKS._replace(num_tokens=7)]))[0] == "blocks"


def test_a_pair_tells_what_its_source_lacks() -> None:
    assert Pair.compile(cache(), cache()).absent == ()
    later = with_layers(cache(), 1)
    assert Pair.compile(cache(), later).absent == ("attention: the source has nothing of layer 2",)
