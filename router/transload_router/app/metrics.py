"""What the router counts, in Prometheus form.

Labels come from bounded sets: endpoints by route, models by what engines serve (else "other"),
engines by id. Series of an engine go when it goes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

# From a cached short prompt on a GPU (10 ms) to a queue that nobody should see (minutes).
_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LEG_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
# Decode steps: small models at 1 ms, large batches at some 100 ms, stalls above.
_CHUNK_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class Tally(Collector):
    """A counter by labels, cheap enough for every request.

    One dict look-up and an addition: the router has one thread, so the lock that
    prometheus_client's own counters take for others would be paid for nothing.
    """

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *values: str, amount: int = 1) -> None:
        """Count, under these label values."""
        self._counts[values] = self._counts.get(values, 0) + amount

    def value(self, *values: str) -> int:
        """What was counted under these label values."""
        return self._counts.get(values, 0)

    def forget(self, label: str, value: str) -> None:
        """Drop every series with this label value."""
        _forget(self._counts, self._labels.index(label), value)

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


class Times(Collector):
    """A histogram of seconds by labels, with the cost of `Tally`."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observer(self, *values: str) -> Callable[[float], None]:
        """A function that observes seconds under these label values."""
        counts, total = self._find(values)
        bounds = self._bounds

        def observe(seconds: float) -> None:
            counts[bisect_left(bounds, seconds)] += 1
            total[0] += seconds

        return observe

    def observe(self, seconds: float, *values: str) -> None:
        """Observe seconds under these label values."""
        counts, total = self._series.get(values) or self._find(values)
        counts[bisect_left(self._bounds, seconds)] += 1
        total[0] += seconds

    def _find(self, values: tuple[str, ...]) -> tuple[list[int], list[float]]:
        return self._series.setdefault(values, ([0] * (len(self._bounds) + 1), [0.0]))

    def forget(self, label: str, value: str) -> None:
        """Drop every series with this label value."""
        _forget(self._series, self._labels.index(label), value)

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = (*map(str, self._bounds), "+Inf")
        for values, (counts, total) in self._series.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric(values, buckets, total[0])
        yield family


def _forget(series: dict[tuple[str, ...], Any], index: int, value: str) -> None:
    for values in [key for key in series if key[index] == value]:
        del series[values]


class InFlight(Collector):
    """Requests being served, by endpoint."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def enter(self, endpoint: str) -> None:
        """A request begins; its end must call `leave`."""
        self.counts[endpoint] = self.counts.get(endpoint, 0) + 1

    def leave(self, endpoint: str) -> None:
        """A request has ended."""
        self.counts[endpoint] -= 1

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        family = GaugeMetricFamily(
            "transload_requests_in_flight", "Requests being served.", labels=["endpoint"]
        )
        for endpoint, count in self.counts.items():
            family.add_metric([endpoint], count)
        yield family


# (engine id, role, requests, reserved tokens, whether it is up)
EngineRow = tuple[str, str, int, int, bool]


class EngineLoads(Collector):
    """Gauges read from the live tables at scrape time, so that they cannot drift from them."""

    def __init__(self, rows: Callable[[], Iterator[EngineRow]]) -> None:
        self._rows = rows

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        labels = ["engine", "role"]
        requests = GaugeMetricFamily(
            "transload_engine_requests_in_flight", "Legs in flight on an engine.", labels=labels
        )
        tokens = GaugeMetricFamily(
            "transload_engine_reserved_tokens",
            "Tokens reserved on an engine (estimated).",
            labels=labels,
        )
        up = GaugeMetricFamily(
            "transload_engine_up", "1 unless the engine is known to be down.", labels=labels
        )
        for engine, role, num_requests, num_tokens, is_up in self._rows():
            requests.add_metric([engine, role], num_requests)
            tokens.add_metric([engine, role], num_tokens)
            up.add_metric([engine, role], float(is_up))
        return (requests, tokens, up)


# (engine id, rank, state of its stream, last batch's number, blocks held by tier)
CacheRow = tuple[str, int, str, int | None, dict[str, int]]


class CacheGauges(Collector):
    """Gauges of followed caches, read from the live index at scrape time."""

    def __init__(self, rows: Callable[[], Iterator[CacheRow]]) -> None:
        self._rows = rows

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        blocks = GaugeMetricFamily(
            "transload_index_blocks",
            "Blocks that a rank's cache is known to hold.",
            labels=["engine", "rank", "tier"],
        )
        states = GaugeMetricFamily(
            "transload_kv_stream_state",
            "1 for the state of a rank's stream of KV events.",
            labels=["engine", "rank", "state"],
        )
        sequences = GaugeMetricFamily(
            "transload_kv_events_last_sequence",
            "Number of the last batch of KV events that is in the index.",
            labels=["engine", "rank"],
        )
        for engine, rank, state, sequence, num_blocks in self._rows():
            states.add_metric([engine, str(rank), state], 1.0)
            if sequence is not None:
                sequences.add_metric([engine, str(rank)], sequence)
            for tier, count in num_blocks.items():
                blocks.add_metric([engine, str(rank), tier], count)
        return (blocks, states, sequences)


# (name, help, labels)
_REQUEST_TALLIES = (
    (
        "transload_requests",
        "Requests by the status that the client got; 499 where it left first.",
        ("endpoint", "model", "code"),
    ),
    (
        "transload_errors",
        "Failed legs and own refusals, by leg and kind.",
        ("leg", "kind", "engine"),
    ),
    (
        "transload_paths",
        "Requests by how they were served and why.",
        ("endpoint", "path", "reason"),
    ),
)
_HANDOFF_TALLIES = (
    (
        "transload_fallbacks",
        "Requests that decode served without prefill's blocks, by reason.",
        ("reason",),
    ),
    ("transload_retries", "Legs sent again elsewhere.", ("leg",)),
    (
        "transload_handoffs",
        "Prefill answers by whether they carried a handoff.",
        ("outcome",),
    ),
    (
        "transload_handoffs_released",
        "Handoffs that no decode engine took, by what frees their blocks.",
        ("released",),
    ),
)
_CACHE_TALLIES = (
    (
        "transload_decisions",
        "Choices of engines by their reason.",
        ("reason",),
    ),
    (
        "transload_prompts",
        "Requests by where their prompt's token ids came from, or why they are not known.",
        ("source",),
    ),
    (
        "transload_cached_tokens",
        "Prompt tokens in caches, as predicted and as engines reported, of the same requests.",
        ("said",),
    ),
    (
        "transload_cache_predictions",
        "Requests whose cached tokens an engine reported, by how the prediction compares.",
        ("basis", "outcome"),
    ),
    (
        "transload_cached_tokens_error",
        "Tokens by which predictions of cached tokens were off, by cause.",
        ("cause",),
    ),
    (
        "transload_kv_stream_events",
        "What happened to engines' streams of KV events.",
        ("engine", "what"),
    ),
    (
        "transload_index_snapshots",
        "Snapshots of the index asked of another replica at the start.",
        ("outcome",),
    ),
)
# (name, help, labels, buckets)
_TIMES = (
    (
        "transload_time_to_first_token_seconds",
        "Seconds from the request's last byte to the first chunk of a stream, both legs.",
        ("endpoint",),
        _TTFT_BUCKETS,
    ),
    (
        "transload_leg_seconds",
        "Seconds of one leg, from its request to its end.",
        ("leg", "engine"),
        _LEG_BUCKETS,
    ),
    (
        "transload_inter_chunk_seconds",
        "Seconds between two arrivals of a stream's bytes from its engine.",
        ("endpoint",),
        _CHUNK_BUCKETS,
    ),
)


class Metrics:
    """All series of one router, in a registry of their own."""

    def __init__(
        self,
        engine_rows: Callable[[], Iterator[EngineRow]],
        cache_rows: Callable[[], Iterator[CacheRow]],
    ) -> None:
        self.requests, self.errors, self.paths = (Tally(*row) for row in _REQUEST_TALLIES)
        self.fallbacks, self.retries, self.handoffs, self.released = (
            Tally(*row) for row in _HANDOFF_TALLIES
        )
        tallies = [Tally(*row) for row in _CACHE_TALLIES]
        self.decisions, self.prompts, self.cached_tokens, self.predictions = tallies[:4]
        self.prediction_errors, self.kv_events, self.snapshots = tallies[4:]
        self.ttft, self.leg_seconds, self.chunk_times = (Times(*row) for row in _TIMES)
        self.in_flight = InFlight()
        self._registry = CollectorRegistry()
        for collector in (
            *(self.requests, self.errors, self.paths, self.fallbacks, self.retries),
            *(self.handoffs, self.released, self.ttft, self.leg_seconds, self.chunk_times),
            *(self.decisions, self.prompts, self.cached_tokens, self.predictions),
            *(
                self.prediction_errors,
                self.kv_events,
                self.snapshots,
                self.in_flight,
                EngineLoads(engine_rows),
            ),
            CacheGauges(cache_rows),
        ):
            self._registry.register(collector)

    def forget_engine(self, engine: str) -> None:
        """Drop an engine's series."""
        self.errors.forget("engine", engine)
        self.kv_events.forget("engine", engine)
        self.leg_seconds.forget("engine", engine)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
