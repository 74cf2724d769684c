"""What does a choice cost a request? All of it, on the live path: match, decision, expectations.

    python bench/choose.py [--quick]

What is timed is `app/legs.Legs.choose`: the ask with the match of the prompt in the index, the view
of the fleet, the policy's choice, its reservations, and the blocks that are expected from then
on; *end* is what takes them back (`Legs.end_all`). CPU time of this process, medians of repeats in
turn, with the 95th percentile.

Half of a fleet are prefill, half decode engines. Each holds a random prefix of the prompt in blocks
of 16 tokens, and all have other requests waiting and running. *Known*: the prompt's keys are
there, as those of a conversation's earlier turns are. *New*: they are computed, too.
"""

import argparse
import datetime
import os
import pathlib
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec

from load import quantile
from transload_router.app.legs import Legs
from transload_router.app.relay import do_nothing
from transload_router.app.request import GenerateRequest, read_request
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import CHAT
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.events import BlockHash, Stored
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.prompt import Prompt, pack_tokens
from transload_router.settings import Settings

RESULTS = pathlib.Path(__file__).parent / "results" / "choose.json"
FLEETS = (8, 64, 256)
PROMPTS = (8_192, 131_072)
BLOCK_SIZE = 16
# Requests under way per prefill engine.
NUM_LIVE = 4
TARGET_ENGINES, TARGET_TOKENS, TARGET_US = 64, 8_192, 500.0


class Row(msgspec.Struct, frozen=True):
    """CPU microseconds of one fleet and prompt."""

    engines: int
    tokens: int
    known_us: float
    known_p95_us: float
    new_us: float
    new_p95_us: float
    end_us: float


class World:
    """A router that nobody serves, with something in its index and on its engines' hands."""

    def __init__(self, num_engines: int, num_tokens: int) -> None:
        chance = random.Random(1)
        half = num_engines // 2
        self.router = Router(
            Settings(
                prefill=[f"http://127.0.0.1:{at}" for at in range(1, half + 1)],
                decode=[f"http://127.0.0.1:{at}" for at in range(half + 1, num_engines + 1)],
            )
        )
        self.tokens = [chance.randrange(1, 150_000) for _ in range(num_tokens)]
        for number, engine_id in enumerate(self.router.fleet.members):
            key = (engine_id, 0)
            self.router.index.add_owner(key, "m", 0)
            self.router.streams[key] = StreamState.EXACT
            num_blocks = chance.randrange(1, num_tokens // BLOCK_SIZE)
            names: list[BlockHash] = [number * 1_000_000 + block for block in range(num_blocks)]
            held = self.tokens[: num_blocks * BLOCK_SIZE]
            self.router.index.apply(key, 0, Stored(names, None, held, BLOCK_SIZE))
        self.live = [self.begin(self.other(chance)) for _ in range(NUM_LIVE * half)]

    def other(self, chance: random.Random) -> Prompt:
        """A prompt that nobody holds."""
        tokens = [chance.randrange(1, 150_000) for _ in range(2_048)]
        return Prompt(Identity("m"), pack_tokens(tokens))

    def prompt(self) -> Prompt:
        """The prompt, without keys."""
        return Prompt(Identity("m"), pack_tokens(self.tokens))

    def request(self, prompt: Prompt) -> GenerateRequest:
        """A request as it stands before its engines are chosen."""
        messages = [{"role": "user", "content": "What does a transload terminal do?"}]
        body = msgspec.json.encode({"model": "m", "messages": messages, "max_tokens": 256})
        request = read_request(self.router, CHAT, CHAT.path, [], body, 0.0, do_nothing)
        request.prompt, request.prompt_source = prompt, "client"
        request.num_prompt_tokens = prompt.num_tokens
        return request

    def begin(self, prompt: Prompt) -> Legs:
        """A request under way."""
        legs = Legs(self.router, self.request(prompt))
        legs.choose(frozenset(), may_split=True, is_handed_off=False)
        return legs

    def measure(self, repeats: int) -> dict[str, list[float]]:
        """Microseconds of each repeat."""
        times: dict[str, list[float]] = {"known": [], "new": [], "end": []}
        known = self.prompt()
        known.keys(BLOCK_SIZE)
        for at in range(repeats):
            for name, prompt in (("known", known), ("new", self.prompt())):
                legs = Legs(self.router, self.request(prompt))
                times[name].append(_time_us(partial(_choose, legs)))
                times["end"].append(_time_us(legs.end_all))
            # The fleet's load is another one each time.
            self.live[at % len(self.live)].end_all()
            self.live[at % len(self.live)] = self.begin(self.other(random.Random(at)))
        return times


def _choose(legs: Legs) -> None:
    choice = legs.choose(frozenset(), may_split=True, is_handed_off=False)
    assert choice is not None


def _time_us(work: Callable[[], object]) -> float:
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1e3


def row_of(num_engines: int, num_tokens: int, repeats: int) -> Row:
    """One row."""
    times = World(num_engines, num_tokens).measure(repeats)
    return Row(
        engines=num_engines,
        tokens=num_tokens,
        known_us=round(statistics.median(times["known"]), 1),
        known_p95_us=round(quantile(times["known"], 0.95), 1),
        new_us=round(statistics.median(times["new"]), 1),
        new_p95_us=round(quantile(times["new"], 0.95), 1),
        end_us=round(statistics.median(times["end"]), 1),
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="JSON file to write")
    args = parser.parse_args()
    repeats = 20 if args.quick else 300
    rows = []
    layout = "{:>7} {:>7} {:>9} {:>7} {:>9} {:>7} {:>7}"
    print(layout.format("engines", "tokens", "known us", "p95", "new us", "p95", "end us"))
    for num_engines in FLEETS:
        for num_tokens in PROMPTS:
            row = row_of(num_engines, num_tokens, repeats)
            rows.append(row)
            print(layout.format(*msgspec.structs.astuple(row)), flush=True)
    (aim,) = [row for row in rows if (row.engines, row.tokens) == (TARGET_ENGINES, TARGET_TOKENS)]
    for name, spent in (("known", aim.known_us), ("new", aim.new_us)):
        word = "pass" if spent <= TARGET_US else "miss"
        print(
            f"{aim.engines} engines, {aim.tokens} tokens, {name}: {spent} of {TARGET_US} us: {word}"
        )
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python bench/choose.py", *sys.argv[1:]]),
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 1),
        "repeats": repeats,
        "block_size": BLOCK_SIZE,
        "rows": rows,
    }
    args.results.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


if __name__ == "__main__":
    main()
