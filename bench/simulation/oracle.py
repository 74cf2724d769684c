"""What a choice costs in truth, known exactly: caches, queues, service times and links, now.

The oracle is greedy: it minimises each request's own time to the first token and nobody else's, so
a policy that also thinks of later requests can beat it. It knows no noise that is still to come.
"""

from simulation.baselines import ReferenceRouter
from simulation.cache import match_all
from simulation.engine import SimulatedEngine
from simulation.fleet import Fleet, Flight
from simulation.trace import BLOCK_TOKENS, Request

MOST_ENDS = 8
"""Of a large fleet, pairs are formed of so many prefill and decode engines that are best alone."""


class Oracle:
    """Exact seconds to the first token.

    Args:
        fleet: The truth.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def regret_s(self, flight: Flight, now_s: float) -> float:
        """See `Judge`."""
        hits = self._hits(flight.request)
        chosen_s = self._price_s(flight.request, flight.prefill, flight.decode, hits, now_s)
        return max(0.0, chosen_s - self._best(flight.request, hits, now_s)[0])

    def best(self, request: Request, now_s: float) -> tuple[int | None, int]:
        """The engines with the earliest first token: prefill, or None, and decode."""
        return self._best(request, self._hits(request), now_s)[1:]

    def _hits(self, request: Request) -> dict[int, int]:
        """Blocks that each engine will hold once it has done what waits for it now."""
        keys = request.blocks[: request.most_cached_blocks]
        hits = match_all(self._fleet.holders, keys)
        for engine in self._fleet.engines:
            if engine.promised:
                count = hits.get(engine.number, 0)
                while count < len(keys) and (
                    keys[count] in engine.promised or keys[count] in engine.cache
                ):
                    count += 1
                hits[engine.number] = count
        return hits

    def _best(
        self, request: Request, hits: dict[int, int], now_s: float
    ) -> tuple[float, int | None, int]:
        fleet = self._fleet
        prompts = sorted(
            (self._prefill_s(request, engine, hits, now_s), engine.number)
            for engine in fleet.prefills
        )
        sinks = sorted(
            (self._admission_s(request, engine, now_s), engine.number) for engine in fleet.decodes
        )
        pairs: list[tuple[float, int | None, int]] = [
            (self._local_s(request, engine, hits, now_s), None, engine.number)
            for engine in fleet.decodes
        ]
        for prefill_s, prefill in prompts[:MOST_ENDS]:
            for sink_s, decode in sinks[:MOST_ENDS]:
                link_s = self._link_s(request, prefill, decode, hits, now_s + prefill_s)
                pairs.append((prefill_s + link_s + sink_s, prefill, decode))
        return min(pairs, key=lambda pair: pair[0])

    def _price_s(
        self,
        request: Request,
        prefill: int | None,
        decode: int,
        hits: dict[int, int],
        now_s: float,
    ) -> float:
        engines = self._fleet.engines
        if prefill is None:
            return self._local_s(request, engines[decode], hits, now_s)
        prefill_s = self._prefill_s(request, engines[prefill], hits, now_s)
        link_s = self._link_s(request, prefill, decode, hits, now_s + prefill_s)
        return prefill_s + link_s + self._admission_s(request, engines[decode], now_s)

    def _prefill_s(
        self, request: Request, engine: SimulatedEngine, hits: dict[int, int], now_s: float
    ) -> float:
        """Until the first leg's answer is with the router."""
        profile = self._fleet.profile
        num_cached = BLOCK_TOKENS * hits.get(engine.number, 0)
        num_new = request.num_prompt_tokens - num_cached
        num_steps = -(-num_new // profile.budget_tokens)
        own_s = engine.times.chunk_s(num_new, num_cached) + num_steps * engine.times.base_s
        return 2 * profile.http_s + engine.remaining_s(now_s) + own_s

    def _link_s(
        self, request: Request, prefill: int, decode: int, hits: dict[int, int], now_s: float
    ) -> float:
        fleet = self._fleet
        num_tokens = request.num_prompt_tokens - BLOCK_TOKENS * hits.get(decode, 0)
        num_bytes = num_tokens * fleet.profile.kv_bytes_per_token
        wait_s = fleet.links.wait_s(prefill, decode, now_s)
        return wait_s + fleet.links.transfer_s(prefill, decode, num_bytes)

    def _admission_s(self, request: Request, engine: SimulatedEngine, now_s: float) -> float:
        """From a handoff that is there to the first token with the router."""
        step_s = engine.times.base_s + engine.times.decode_s(
            engine.num_decoding, engine.num_context_tokens
        )
        last_s = engine.times.chunk_s(1, request.num_prompt_tokens)
        return 2 * self._fleet.profile.http_s + engine.remaining_s(now_s) + 1.5 * step_s + last_s

    def _local_s(
        self, request: Request, engine: SimulatedEngine, hits: dict[int, int], now_s: float
    ) -> float:
        profile, times = self._fleet.profile, engine.times
        num_cached = BLOCK_TOKENS * hits.get(engine.number, 0)
        num_new = request.num_prompt_tokens - num_cached
        budget = max(1, profile.mixed_budget_tokens - engine.num_decoding)
        beside_s = times.decode_s(engine.num_decoding, engine.num_context_tokens) + times.base_s
        waiting_s = engine.remaining_s(now_s)
        num_steps = -(-num_new // budget) + waiting_s / (waiting_s + times.chunk_s(budget, 0))
        return (
            2 * profile.http_s
            + waiting_s
            + times.chunk_s(num_new, num_cached)
            + num_steps * beside_s
        )


class OracleRouter(ReferenceRouter):
    """Sends each request where its first token is earliest in truth."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        super().__init__(fleet, seed)
        self._oracle = Oracle(fleet)

    def choose(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        flight.prefill, flight.decode = self._oracle.best(flight.request, now_s)

    def has_prefilled(self, flight: Flight, now_s: float) -> None:
        """Nothing to keep: the truth is read."""

    def has_first_token(self, flight: Flight, now_s: float) -> None:
        """Nothing to keep."""

    def has_finished(self, flight: Flight, now_s: float) -> None:
        """Nothing to keep."""
