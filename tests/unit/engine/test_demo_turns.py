"""What the demonstration tells of a turn, and when it says that something is not as it ought."""

import re
from dataclasses import replace

import pytest

from transload_engine.demo.chat import Answer, Counts
from transload_engine.demo.turns import Turn, compared, complaints, grown, told

ANSWER = Answer(
    text="ab",
    token_ids=(64, 65),
    num_prompt_tokens=1106,
    headers={
        "x-transload-path": "disaggregated",
        "x-transload-prefill": "prefill-0",
        "x-transload-decode": "decode-0",
        "x-transload-prefill-seconds": "0.250000",
        "x-transload-predicted-cached-tokens": "992",
    },
    first_token_s=0.5,
    total_s=2.25,
)
PREFILL: Counts = {"vllm:prompt_tokens_cached_total": 992.0}
DECODE: Counts = {
    "vllm:prefix_cache_hits_total": 1024.0,
    "transload_kv_loaded_tokens_total": 82.0,
    "transload_kv_loaded_bytes_total": 294912.0,
    "transload_kv_load_seconds_total": 0.0123,
    "transload_kv_load_failures_total": 0.0,
}
TURN = Turn(ANSWER, PREFILL, DECODE)
ALONE = replace(ANSWER, headers={}, total_s=1.5)


def with_header(name: str, value: str) -> Turn:
    return replace(TURN, answer=replace(ANSWER, headers=ANSWER.headers | {name: value}))


def test_each_engines_part_is_told() -> None:
    assert list(told(TURN)) == [
        "  read    prefill-0: 114 of the prompt's 1,106 tokens computed, 992 found in its cache; "
        "0.25 s",
        "          found, as the router had predicted from the engine's events: 992",
        "  moved   82 tokens: 6 blocks of 16 became 3 of 32; 0.29 MB, converted and in place in "
        "0.012 s",
        "  wrote   decode-0: 1,024 of the prompt's tokens found in its cache, 82 "
        "loaded, 0 computed",
        "          2 tokens of answer: the first 0.25 s after the prompt was read, the last 2.00 s",
    ]


def test_what_one_engine_alone_made_of_it_is_told() -> None:
    assert compared(TURN, ALONE) == "the same 2 tokens, in 1.50 s"
    assert compared(TURN, replace(ALONE, token_ids=(64, 66))) == "OTHER 2 tokens, in 1.50 s"


def test_counts_of_before_do_not_count() -> None:
    assert grown({"a": 2.0}, {"a": 5.0, "b": 1.0}) == {"a": 3.0, "b": 1.0}


def test_a_turn_that_went_as_it_should() -> None:
    assert list(complaints(TURN, ALONE, is_first=False)) == []


def test_nothing_is_cached_for_a_first_turn() -> None:
    first = replace(
        with_header("x-transload-predicted-cached-tokens", "0"),
        prefill={"vllm:prompt_tokens_cached_total": 0.0},
        decode=DECODE
        | {"vllm:prefix_cache_hits_total": 0.0, "transload_kv_loaded_tokens_total": 1106.0},
    )
    assert list(complaints(first, ALONE, is_first=True)) == []
    (found,) = complaints(first, ALONE, is_first=False)
    assert found == "both engines were to have the first turn cached, and one had not"


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (with_header("x-transload-path", "local"), "and its path was local"),
        (with_header("x-transload-predicted-cached-tokens", "990"), "of 992 .* knew of 990"),
        (replace(TURN, decode=DECODE | {"transload_kv_load_failures_total": 1.0}), "one did"),
        (replace(TURN, decode=DECODE | {"vllm:prefix_cache_hits_total": 992.0}), "1106 tokens"),
        (replace(TURN, answer=replace(ANSWER, token_ids=(64,))), "of one engine alone"),
    ],
)
def test_what_is_not_as_it_should_be_is_named(turn: Turn, said: str) -> None:
    (found,) = complaints(turn, ALONE, is_first=False)
    assert re.search(said, found)


def test_a_turn_that_moved_nothing_or_said_nothing_is_none() -> None:
    still = DECODE | {"transload_kv_loaded_tokens_total": 0.0}
    assert any(
        "loaded none" in each
        for each in complaints(replace(TURN, decode=still), ALONE, is_first=False)
    )
    mute = replace(TURN, answer=replace(ANSWER, token_ids=()))
    assert list(complaints(mute, replace(ALONE, token_ids=()), is_first=False))
