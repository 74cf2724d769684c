"""Traces: what is read, refused, spread and counted."""

from pathlib import Path

import pytest

from simulation.trace import (
    Request,
    TraceError,
    ideal_hit_rate,
    read_trace,
    speed_up,
    spread,
)

LINES = """\
{"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 5]}
{"timestamp": 0, "input_length": 1024, "output_length": 0, "hash_ids": [0, 1]}

{"timestamp": 3000, "input_length": 1300, "output_length": 9, "hash_ids": [0, 1, 6]}
{"timestamp": 6000, "input_length": 600, "output_length": 1, "hash_ids": [2, 3]}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    return path


def test_reads_requests_in_order_of_arrival(tmp_path: Path) -> None:
    requests = read_trace(written(tmp_path, LINES))

    assert [one.arrival_s for one in requests] == [0.0, 3.0, 3.0, 6.0]
    assert [one.number for one in requests] == [0, 1, 2, 3]
    assert requests[0] == Request(0, 0.0, 1024, 1, (0, 1))
    assert requests[1].blocks == (0, 1, 5)


def test_counts_whole_blocks_and_those_that_can_be_hit() -> None:
    whole = Request(0, 0.0, 1024, 1, (0, 1))
    begun = Request(0, 0.0, 1025, 1, (0, 1, 2))

    assert (whole.num_whole_blocks, whole.most_cached_blocks) == (2, 1)
    assert (begun.num_whole_blocks, begun.most_cached_blocks) == (2, 2)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no trace at .*nowhere\.jsonl"):
        read_trace(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "holds no request"),
        ("{}", r"trace\.jsonl:1: expected a request, got '{}'"),
        ("not json", "expected a request"),
        (
            '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [0]}',
            "1 blocks of 512 tokens do not cover 1024",
        ),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, line))


def test_equal_stamps_are_spread_until_the_next(tmp_path: Path) -> None:
    requests = spread(read_trace(written(tmp_path, LINES)))

    assert [one.arrival_s for one in requests] == [0.0, 3.0, 4.5, 6.0]


def test_speed_shortens_the_time_between_arrivals(tmp_path: Path) -> None:
    requests = speed_up(read_trace(written(tmp_path, LINES)), 2.0)

    assert [one.arrival_s for one in requests] == [0.0, 1.5, 1.5, 3.0]


def test_the_ideal_hits_whole_blocks_of_earlier_prompts(tmp_path: Path) -> None:
    requests = read_trace(written(tmp_path, LINES))

    # The second and third prompts find blocks 0 and 1; the fourth shares none.
    assert ideal_hit_rate(requests) == pytest.approx(4 * 512 / (1024 + 1100 + 1300 + 600))
