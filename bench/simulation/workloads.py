"""Workloads made by rule, in the form of a trace.

Their lengths follow the conversation trace's published statistics: inputs of 12,035 tokens on
average (median 6,909, 90th percentile 27,367) are close to a log-normal law with the median and a
sigma of ln(27367 / 6909) / 1.2816 = 1.07, whose mean is 12,300; answers are log-normal with mean
343. What each workload is made to stress is its docstring.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from simulation.trace import BLOCK_TOKENS, Request

MEDIAN_INPUT, SIGMA_INPUT = 6909, 1.07
MEDIAN_ANSWER, SIGMA_ANSWER = 250, 0.8
"""Mean 343: 250 * exp(0.8 ** 2 / 2)."""

MOST_INPUT = 120_000
"""The trace's longest prompts; log-normal tails go on."""


class Blocks:
    """Ids for prompts made of parts: equal parts behind equal prompts are equal blocks."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, str, int], int] = {}

    def chain(self, parts: Sequence[tuple[str, int]]) -> tuple[tuple[int, ...], int]:
        """Block ids and tokens of a prompt.

        Args:
            parts: Name and tokens of each part; a block is named by what begins in it or before.
        """
        ends: list[tuple[str, int]] = []
        num_tokens = 0
        for name, size in parts:
            num_tokens += size
            ends.append((name, num_tokens))
        blocks = []
        parent, at = -1, 0
        for end in range(BLOCK_TOKENS, num_tokens + BLOCK_TOKENS, BLOCK_TOKENS):
            content = []
            while at < len(ends) and ends[at][1] < end:
                content.append(f"{ends[at][0]}<{ends[at][1]}")
                at += 1
            content.append(ends[min(at, len(ends) - 1)][0])
            key = (parent, "|".join(content), min(end, num_tokens))
            parent = self._ids.setdefault(key, len(self._ids))
            blocks.append(parent)
        return tuple(blocks), num_tokens


def agents(num_requests: int, seed: int) -> list[Request]:
    """Tool-using agents: contexts that grow turn by turn behind long shared instructions.

    Eight kinds of agents with instructions of 3,000 to 9,000 tokens; a session has 8 turns on
    average, each adding an answer and a tool's output of 900 tokens on average, 8 s apart on
    average. A prompt is its predecessor and a bit: caches decide nearly everything.
    """
    chance = random.Random(f"agents-{seed}")
    kinds = [(f"kind{n}", chance.randrange(3000, 9000)) for n in range(8)]

    def session(number: int, begin_s: float) -> Iterator[_Turn]:
        parts = [chance.choice(kinds), (f"task{number}", chance.randrange(200, 2000))]
        moment_s = begin_s
        for turn in range(_geometric(chance, 8.0)):
            if sum(size for _, size in parts) > MOST_INPUT:
                return
            num_answer = _answer(chance)
            yield moment_s, list(parts), num_answer
            added = num_answer + int(chance.lognormvariate(math.log(600), 0.9))
            parts.append((f"turn{number}.{turn}", added))
            moment_s += chance.expovariate(1 / 8.0)

    return _sessions(chance, session, num_requests, turns_per_session=8.0)


def documents(num_requests: int, seed: int) -> list[Request]:
    """Questions on long documents: four on average to each, behind one short instruction.

    Documents are as long as the trace's inputs. The questions on one come within some two minutes,
    so they overlap with the computing of the first.
    """
    chance = random.Random(f"documents-{seed}")

    def session(number: int, begin_s: float) -> Iterator[_Turn]:
        size = min(MOST_INPUT, int(chance.lognormvariate(math.log(MEDIAN_INPUT), SIGMA_INPUT)))
        moment_s = begin_s
        for question in range(_geometric(chance, 4.0)):
            asked = (f"question{number}.{question}", chance.randrange(20, 300))
            parts = [("instruction", 600), (f"document{number}", max(64, size)), asked]
            yield moment_s, parts, _answer(chance)
            moment_s += chance.expovariate(1 / 30.0)

    return _sessions(chance, session, num_requests, turns_per_session=4.0)


def short_chats(num_requests: int, seed: int) -> list[Request]:
    """Chats of a few short turns: prompts of some hundred tokens, little to be cached.

    One instruction of 1,100 tokens is common to all; a turn adds the last answer and 60 tokens.
    """
    chance = random.Random(f"short-chats-{seed}")

    def session(number: int, begin_s: float) -> Iterator[_Turn]:
        parts = [("instruction", 1100), (f"chat{number}", chance.randrange(10, 400))]
        moment_s = begin_s
        for turn in range(_geometric(chance, 3.0)):
            num_answer = _answer(chance)
            yield moment_s, list(parts), num_answer
            parts.append((f"turn{number}.{turn}", num_answer + chance.randrange(10, 110)))
            moment_s += chance.expovariate(1 / 25.0)

    return _sessions(chance, session, num_requests, turns_per_session=3.0)


_Turn = tuple[float, list[tuple[str, int]], int]

WORKLOADS: dict[str, Callable[[int, int], list[Request]]] = {
    "agents": agents,
    "documents": documents,
    "short-chats": short_chats,
}


def _sessions(
    chance: random.Random,
    session: Callable[[int, float], Iterator[_Turn]],
    num_requests: int,
    *,
    turns_per_session: float,
) -> list[Request]:
    """Sessions that begin at random, 3.4 requests/s of them on average, cut at a number."""
    blocks = Blocks()
    turns: list[_Turn] = []
    begin_s = 0.0
    number = 0
    while len(turns) < num_requests * 1.3:
        turns.extend(session(number, begin_s))
        number += 1
        begin_s += chance.expovariate(3.4 / turns_per_session)
    turns.sort(key=lambda turn: turn[0])
    requests = []
    for index, (moment_s, parts, num_answer) in enumerate(turns[:num_requests]):
        ids, num_tokens = blocks.chain(parts)
        requests.append(Request(index, moment_s, num_tokens, num_answer, ids))
    start_s = requests[0].arrival_s
    return [replace(one, arrival_s=one.arrival_s - start_s) for one in requests]


def _geometric(chance: random.Random, mean: float) -> int:
    """At least 1."""
    return 1 + int(math.log(1.0 - chance.random()) / math.log(1.0 - 1.0 / mean))


def _answer(chance: random.Random) -> int:
    return max(1, min(4000, int(chance.lognormvariate(math.log(MEDIAN_ANSWER), SIGMA_ANSWER))))
