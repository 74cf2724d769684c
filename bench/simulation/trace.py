"""Requests of a trace: reading, cutting and speeding up.

A trace is one JSON object per line: `timestamp` (ms), `input_length` and `output_length` (tokens)
and `hash_ids`, one id per block of 512 prompt tokens, the last of which may be begun only. Equal
ids mean equal prompts up to and including that block.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

BLOCK_TOKENS = 512


class TraceError(ValueError):
    """The file is not there or not a trace; the message is for the person at the keyboard."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client sends it.

    Attributes:
        arrival_s: Seconds since the trace's start.
        num_prompt_tokens: At least 1.
        num_answer_tokens: At least 1.
        blocks: Ids of the prompt's blocks, first to last; the last may be begun only.
    """

    number: int
    arrival_s: float
    num_prompt_tokens: int
    num_answer_tokens: int
    blocks: tuple[int, ...]

    @property
    def num_whole_blocks(self) -> int:
        """Blocks that a cache can hold."""
        return self.num_prompt_tokens // BLOCK_TOKENS

    @property
    def most_cached_blocks(self) -> int:
        """Blocks that an engine can reuse: it computes at least one token of a prompt."""
        return (self.num_prompt_tokens - 1) // BLOCK_TOKENS


def read_trace(path: Path) -> list[Request]:
    """All requests of a file, in the order of their arrival.

    Raises:
        TraceError: The file is missing, or a line is not a request.
    """
    if not path.is_file():
        raise TraceError(f"no trace at {path}: give a file in the conversation trace's form")
    with path.open() as lines:
        read = [_read_line(path, n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not read:
        raise TraceError(f"{path} holds no request")
    read.sort(key=lambda request: request.arrival_s)
    start_s = read[0].arrival_s
    return [
        replace(request, number=number, arrival_s=request.arrival_s - start_s)
        for number, request in enumerate(read)
    ]


def _read_line(path: Path, line_number: int, line: str) -> Request:
    try:
        record = json.loads(line)
        request = Request(
            number=line_number,
            arrival_s=float(record["timestamp"]) / 1000,
            num_prompt_tokens=int(record["input_length"]),
            num_answer_tokens=max(1, int(record["output_length"])),
            blocks=tuple(int(block) for block in record["hash_ids"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}:{line_number}: expected a request, got {line[:80]!r}") from error
    if request.num_prompt_tokens < 1 or len(request.blocks) < request.num_whole_blocks:
        raise TraceError(
            f"{path}:{line_number}: {len(request.blocks)} blocks of {BLOCK_TOKENS} tokens "
            f"do not cover {request.num_prompt_tokens}"
        )
    return request


def spread(requests: Sequence[Request]) -> list[Request]:
    """Requests of one time stamp, spread evenly until the next one.

    Published traces are stamped in steps of seconds; sent as stamped, each step would be a burst.
    """
    counts = Counter(request.arrival_s for request in requests)
    stamps = sorted(counts)
    gaps = [late - early for early, late in pairwise(stamps)]
    usual_s = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
    gap_s = dict(zip(stamps, [min(gap, usual_s) for gap in gaps] + [usual_s], strict=True))
    seen: Counter[float] = Counter()
    result = []
    for request in requests:
        stamp = request.arrival_s
        share = seen[stamp] / counts[stamp]
        seen[stamp] += 1
        result.append(replace(request, arrival_s=stamp + share * gap_s[stamp]))
    return result


def speed_up(requests: Sequence[Request], speed: float) -> list[Request]:
    """The same requests, arriving `speed` times as fast."""
    return [replace(request, arrival_s=request.arrival_s / speed) for request in requests]


def ideal_hit_rate(requests: Sequence[Request]) -> float:
    """Share of prompt tokens that one endless cache shared by all engines would hold."""
    held: set[int] = set()
    num_hit = num_tokens = 0
    for request in requests:
        for block in request.blocks[: request.most_cached_blocks]:
            if block not in held:
                break
            num_hit += BLOCK_TOKENS
        held.update(request.blocks[: request.num_whole_blocks])
        num_tokens += request.num_prompt_tokens
    return num_hit / num_tokens
