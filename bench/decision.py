"""What does a decision cost? CPU time of match and choice by fleet and prompt, ours beside simpler.

    python bench/decision.py [--quick]

Half of a fleet are prefill, half decode engines; every one holds a prefix of the prompt, and has
prompts waiting and answers running. A decision is `Index.match`, then the policy's `choose`, with a
change of two destinations' load between one and the next, as reserving brings it. The prompt's
keys are computed once, and shown apart. Each figure is the median of repeats taken in turn.
"""

import argparse
import json
import pathlib
import random
import statistics
import time
from collections.abc import Callable

from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.events import Stored
from transload_router.core.policy.types import Ask, Destination, FleetView
from transload_router.core.prompt import Prompt, pack_tokens
from transload_router.core.routing import Choice, Routing
from transload_router.core.types import Address, Engine, Role

RESULTS = pathlib.Path(__file__).parent / "results" / "decision.json"
FLEETS = (8, 64, 256, 500)
PROMPTS = (8_192, 131_072)
POLICIES = ("cost", "prefix", "least-loaded")
BLOCK_SIZE = 128
# Requests under way per engine.
NUM_LIVE = 4
# The budget at 64 engines and 8k tokens.
TARGET_ENGINES, TARGET_TOKENS, TARGET_US = 64, 8_192, 500.0


class World:
    """A fleet with something in its caches and on its hands."""

    def __init__(self, num_engines: int, num_tokens: int, policy: str) -> None:
        chance = random.Random(1)
        self.tokens = [chance.randrange(1, 150_000) for _ in range(num_tokens)]
        self.index = Index()
        self.routing = Routing(random.Random(2).random, policy)
        self.now = 0.0
        half = num_engines // 2
        self.view = FleetView(
            [_destination("p", Role.PREFILL, at) for at in range(half)],
            [_destination("d", Role.DECODE, at) for at in range(num_engines - half)],
        )
        for one in (*self.view.prefill, *self.view.decode):
            self.index.add_owner(one.key, "m", 0)
            num_blocks = chance.randrange(1, num_tokens // BLOCK_SIZE)
            held = self.tokens[: num_blocks * BLOCK_SIZE]
            event = Stored(list(range(num_blocks)), None, held, BLOCK_SIZE)
            self.index.apply(one.key, 0, event)
        self.prompt = self.new_prompt()
        self.live: list[Choice] = []
        for _ in range(NUM_LIVE * half):
            self.live.append(self.decide(self.match))
        self.live[0].release(self.now)

    def new_prompt(self) -> Prompt:
        """The same tokens, without keys."""
        return Prompt(Identity("m"), pack_tokens(self.tokens))

    def match(self) -> Ask:
        """What is known of the prompt."""
        num_tokens = self.prompt.num_tokens
        return Ask(num_prompt_tokens=num_tokens, match=self.index.match(self.prompt))

    def decide(self, match: Callable[[], Ask]) -> Choice:
        """One decision, reserved."""
        self.now += 0.001
        choice = self.routing.choose(match(), self.view, self.now)
        assert choice is not None
        return choice

    def measure(self, repeats: int) -> dict[str, float]:
        """Microseconds of CPU."""
        ask = self.match()
        times: dict[str, list[float]] = {"keys": [], "match": [], "choose": [], "whole": []}
        for _ in range(repeats):
            times["keys"].append(_time_us(lambda: self.new_prompt().keys(BLOCK_SIZE)))
            times["match"].append(_time_us(self.match))
            times["choose"].append(_time_us(lambda: self.decide(lambda: ask).release(self.now)))
            times["whole"].append(_time_us(lambda: self.decide(self.match).release(self.now)))
        return {name: round(statistics.median(one), 1) for name, one in times.items()}


def _destination(letter: str, role: Role, at: int) -> Destination:
    return Destination(Engine(f"{letter}{at}", role, Address("127.0.0.1", 1 + at)))


def _time_us(work: Callable[[], object]) -> float:
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1e3


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats; nothing is written")
    repeats = 20 if parser.parse_args().quick else 300
    rows = []
    columns = ("keys", "match", "choose", "whole us")
    print(f"{'engines':>7} {'tokens':>7} {'policy':>12}", *(f"{one:>8}" for one in columns))
    for num_engines in FLEETS:
        for num_tokens in PROMPTS:
            for policy in POLICIES:
                figures = World(num_engines, num_tokens, policy).measure(repeats)
                rows.append(
                    {"engines": num_engines, "tokens": num_tokens, "policy": policy, **figures}
                )
                print(
                    f"{num_engines:>7} {num_tokens:>7} {policy:>12} {figures['keys']:>8} "
                    f"{figures['match']:>8} {figures['choose']:>8} {figures['whole']}"
                )
    (target,) = [
        row["whole"]
        for row in rows
        if (row["engines"], row["tokens"], row["policy"]) == (TARGET_ENGINES, TARGET_TOKENS, "cost")
    ]
    print(f"{TARGET_ENGINES} engines, {TARGET_TOKENS} tokens: {target} us of {TARGET_US} us")
    if repeats >= 300:
        document = {"unit": "us of CPU, medians", "repeats": repeats, "rows": rows}
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
