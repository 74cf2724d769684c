"""Routers that ours is compared with, in their standard forms.

They read the truth: caches, queues and loads as they are at this moment, without an event's delay.
On a disaggregated fleet each chooses the prefill engine by its rule and the decode engine by the
least context held there (random and round-robin by their own rule).

* `random`, `round-robin`, `least-loaded` (fewest requests, then fewest queued tokens).
* `greedy-prefix`: longest prefix held, then the fewest requests.
* `consistent-hash`: a ring of 160 points per engine, by the id of the prompt's second block (the
  first one is a system prompt that all share).
* `overlap-load`: the cost that NVIDIA Dynamo's KV router documents (docs: "KV cache routing"):
  `overlap_weight * prefill blocks + decode blocks`, the lowest wins (temperature 0); prefill blocks
  are those the request would still have to compute, and active ones.
* `weighted-scorer`: in the manner of llm-d's inference scheduler: a prefix-cache scorer with weight
  3, a queue scorer and a KV-utilisation scorer with weight 2 each, every score from 0 to 1; the
  highest sum wins.
"""

import bisect
import hashlib
import random
from collections.abc import Callable, Sequence

from simulation.cache import match_all
from simulation.engine import SimulatedEngine
from simulation.fleet import Fleet, Flight
from simulation.trace import BLOCK_TOKENS, Request

RING_POINTS = 160
"""Points per engine; 160 is the usual figure of ketama rings."""

OVERLAP_WEIGHT = 1.0
"""Dynamo's default `--kv-overlap-score-weight`."""

PREFIX_WEIGHT, QUEUE_WEIGHT, CACHE_USE_WEIGHT = 3.0, 2.0, 2.0


class ReferenceRouter:
    """What the baselines share: loads as a router counts them, and no interest in outcomes."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.chance = random.Random(f"baseline-{seed}")
        self.num_requests = [0] * len(fleet.engines)
        self.num_prefill_blocks = [0] * len(fleet.engines)
        self.num_blocks = [0] * len(fleet.engines)
        self._first = fleet.decodes if fleet.shape.is_mixed else fleet.prefills

    def pick(self, request: Request, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """The engine that computes the prompt."""
        raise NotImplementedError

    def pick_decode(self, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """The engine that writes the answer."""
        return min(engines, key=lambda engine: (self.num_blocks[engine.number], engine.number))

    def matched(self, request: Request) -> dict[int, int]:
        """Blocks held of the prompt, by engine."""
        return match_all(self.fleet.holders, request.blocks[: request.most_cached_blocks])

    def choose(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        request = flight.request
        first = self.pick(request, self._first).number
        num_blocks = len(request.blocks)
        num_hit = self.fleet.engines[first].cache.match(
            request.blocks[: request.most_cached_blocks]
        )
        flight.token = num_blocks - num_hit
        self.num_prefill_blocks[first] += num_blocks - num_hit
        self._count(first, 1, num_blocks)
        if self.fleet.shape.is_mixed:
            flight.decode = first
            return
        flight.prefill = first
        flight.decode = self.pick_decode(self.fleet.decodes).number
        self._count(flight.decode, 1, num_blocks)

    def _count(self, number: int, sign: int, num_blocks: int) -> None:
        self.num_requests[number] += sign
        self.num_blocks[number] += sign * num_blocks

    def _has_computed(self, number: int, flight: Flight) -> None:
        assert isinstance(flight.token, int)
        self.num_prefill_blocks[number] -= flight.token

    def has_prefilled(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        assert flight.prefill is not None
        self._has_computed(flight.prefill, flight)
        self._count(flight.prefill, -1, len(flight.request.blocks))

    def has_first_token(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        if flight.prefill is None:
            self._has_computed(flight.decode, flight)

    def has_finished(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        self._count(flight.decode, -1, len(flight.request.blocks))

    def has_cache_events(
        self,
        number: int,
        removed: list[int],
        stored: list[tuple[int | None, list[int]]],
        now_s: float,
    ) -> None:
        """See `Router`; the baselines read the caches themselves."""


class RandomChoice(ReferenceRouter):
    """Any engine."""

    def pick(self, request: Request, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        return self.chance.choice(engines)

    def pick_decode(self, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        return self.chance.choice(engines)


class RoundRobin(ReferenceRouter):
    """One after the other."""

    _count_first = 0
    _count_decode = 0

    def pick(self, request: Request, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        self._count_first += 1
        return engines[self._count_first % len(engines)]

    def pick_decode(self, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        self._count_decode += 1
        return engines[self._count_decode % len(engines)]


class LeastLoaded(ReferenceRouter):
    """Fewest requests."""

    def pick(self, request: Request, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        return min(
            engines,
            key=lambda e: (self.num_requests[e.number], self.num_blocks[e.number], e.number),
        )


class GreedyPrefix(ReferenceRouter):
    """Longest prefix, then fewest requests."""

    def pick(self, request: Request, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        hits = self.matched(request)
        return min(
            engines,
            key=lambda e: (-hits.get(e.number, 0), self.num_requests[e.number], e.number),
        )


class ConsistentHash(ReferenceRouter):
    """A ring, by the second block."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        super().__init__(fleet, seed)
        self._ring = sorted(
            (_digest(f"{engine.number}-{point}"), engine.number)
            for engine in self._first
            for point in range(RING_POINTS)
        )

    def pick(self, request: Request, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        block = request.blocks[min(1, len(request.blocks) - 1)]
        index = bisect.bisect(self._ring, (_digest(f"block-{block}"), -1)) % len(self._ring)
        return self.fleet.engines[self._ring[index][1]]


class OverlapLoad(ReferenceRouter):
    """Blocks to compute plus blocks in use."""

    def pick(self, request: Request, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        hits = self.matched(request)
        num_blocks = len(request.blocks)

        def cost(engine: SimulatedEngine) -> tuple[float, int]:
            number = engine.number
            to_compute = num_blocks - hits.get(number, 0) + self.num_prefill_blocks[number]
            return OVERLAP_WEIGHT * to_compute + self.num_blocks[number], number

        return min(engines, key=cost)


class WeightedScorer(ReferenceRouter):
    """Prefix, queue and cache use, each scored from 0 to 1."""

    def pick(self, request: Request, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """See `ReferenceRouter`."""
        hits = self.matched(request)
        num_blocks = max(1, request.num_prompt_tokens // BLOCK_TOKENS)
        queues = [engine.num_waiting for engine in engines]
        shortest, longest = min(queues), max(queues)

        def score(engine: SimulatedEngine) -> tuple[float, float]:
            prefix = hits.get(engine.number, 0) / num_blocks
            queue = 1.0
            if longest > shortest:
                queue = (longest - engine.num_waiting) / (longest - shortest)
            free = engine.cache.num_free / engine.cache.capacity
            total = PREFIX_WEIGHT * prefix + QUEUE_WEIGHT * queue + CACHE_USE_WEIGHT * free
            return total, self.chance.random()

        return max(engines, key=score)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


BASELINES: dict[str, Callable[[Fleet, int], ReferenceRouter]] = {
    "random": RandomChoice,
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "greedy-prefix": GreedyPrefix,
    "consistent-hash": ConsistentHash,
    "overlap-load": OverlapLoad,
    "weighted-scorer": WeightedScorer,
}
