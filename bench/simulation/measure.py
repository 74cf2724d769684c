"""What a simulated fleet did: distributions, and the figures of one run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.fleet import Fleet

_BUCKETS_PER_UNIT = 100  # of the natural logarithm: 1 % wide


class Histogram:
    """Counts of positive durations in buckets 1 % wide."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, value_s: float, count: int) -> None:
        """Count a duration `count` times."""
        if count:
            bucket = math.floor(math.log(value_s) * _BUCKETS_PER_UNIT)
            self._counts[bucket] = self._counts.get(bucket, 0) + count

    def percentile(self, percent: float) -> float:
        """Seconds; the middle of the bucket that holds it, 0 if nothing was counted."""
        wanted = sum(self._counts.values()) * percent / 100
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return math.exp((bucket + 0.5) / _BUCKETS_PER_UNIT)
        return 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """By the nearest rank; 0 of nothing."""
    if not values:
        return 0.0
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, math.ceil(len(ranked) * percent / 100) - 1))]


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep to count as served well.

    Attributes:
        first_token_s: At most, to the first token.
        inter_token_s: At most, mean over the answer.
    """

    first_token_s: float
    inter_token_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy at one level. Seconds unless the name says otherwise.

    Attributes:
        hit_rate: Share of prompt tokens that were cached where the prompt was computed.
        goodput_per_s: Requests within the SLO, per second of arrivals.
        imbalance: Busiest over mean of the engines that compute prompts, by seconds in steps.
        local_share: Share of requests that one engine served alone.
        regret_mean_s: Mean over choices of what the exactly best one would have saved; None where
            it was not computed.
        cpu_s: What simulating it took.
    """

    policy: str
    level: str
    speed: float
    num_requests: int
    offered_per_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    itl_p50_s: float
    itl_p90_s: float
    itl_p99_s: float
    hit_rate: float
    goodput_per_s: float
    imbalance: float
    local_share: float
    regret_mean_s: float | None
    regret_p90_s: float | None
    cpu_s: float


def figures_of(
    fleet: "Fleet", policy: str, level: str, speed: float, slo: Slo, cpu_s: float
) -> Figures:
    """What a fleet did that has run to its end."""
    flights = fleet.flights
    span_s = max(1e-9, flights[-1].request.arrival_s)
    first = [flight.time_to_first_token_s for flight in flights]
    regrets = [flight.regret_s for flight in flights] if fleet.judge is not None else None
    engines = fleet.decodes if fleet.shape.is_mixed else fleet.prefills
    busy = [engine.busy_s for engine in engines]
    num_good = sum(
        flight.time_to_first_token_s <= slo.first_token_s
        and flight.inter_token_s <= slo.inter_token_s
        for flight in flights
    )
    return Figures(
        policy=policy,
        level=level,
        speed=speed,
        num_requests=len(flights),
        offered_per_s=len(flights) / span_s,
        ttft_p50_s=percentile(first, 50),
        ttft_p90_s=percentile(first, 90),
        ttft_p99_s=percentile(first, 99),
        ttft_mean_s=sum(first) / len(first),
        itl_p50_s=fleet.intervals.percentile(50),
        itl_p90_s=fleet.intervals.percentile(90),
        itl_p99_s=fleet.intervals.percentile(99),
        hit_rate=sum(flight.num_cached_tokens for flight in flights)
        / sum(flight.request.num_prompt_tokens for flight in flights),
        goodput_per_s=num_good / span_s,
        imbalance=max(busy) / max(1e-9, sum(busy) / len(busy)),
        local_share=sum(flight.prefill is None for flight in flights) / len(flights),
        regret_mean_s=sum(regrets) / len(regrets) if regrets is not None else None,
        regret_p90_s=percentile(regrets, 90) if regrets is not None else None,
        cpu_s=cpu_s,
    )
