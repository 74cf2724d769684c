"""The figures of the relay benchmark: samples, medians, ratios against the targets, tables."""

import statistics
from typing import Literal

import msgspec

# Ours with both legs, as vllm-router; with its defaults, `cost`, events and a tokenizer, which give
# short prompts to decode alone; and with decode alone and nothing known. vllm-router as shipped
# (its default policy keeps a prefix tree), and with its cheapest policy.
OURS, COST, ALONE = "transload", "transload-cost", "transload-alone"
THEIRS = ("vllm-router", "vllm-router-rr")
NAMES = (OURS, COST, ALONE, *THEIRS, "direct")
FEWEST_REPEATS = 5
TARGET_CONNECTIONS = 64
Kind = Literal["plain", "paced", "unpaced", "burst"]
KINDS: tuple[Kind, ...] = ("plain", "paced", "unpaced", "burst")
# Ours over vllm-router's, at most, at 64 connections: per request, and per event of a stream.
TARGETS: dict[Kind, float] = {"plain": 0.70, "paced": 0.50, "unpaced": 0.50, "burst": 0.50}
# Table's title, what is counted, and from microseconds to the title's unit.
TITLES: dict[Kind, tuple[str, str, float]] = {
    "plain": ("per request, not streamed (us)", "requests", 1.0),
    "paced": ("per 100,000 events, one per stream every 10 ms (s)", "events", 0.1),
    "unpaced": ("per 100,000 events, one per stream a turn of the mock (s)", "events", 0.1),
    "burst": ("per 100,000 events, 32 per stream a turn of the mock (s)", "events", 0.1),
}


class Sample(msgspec.Struct):
    """One batch through one contender."""

    cpu_s: float
    requests: int
    events: int
    reads: int
    wall_s: float
    latency_p50_s: float
    latency_p99_s: float
    load_average: float

    def count(self, kind: Kind) -> int:
        """What the batch's cost is divided by: requests, or events of streams."""
        return self.requests if kind == "plain" else self.events

    def cost_us(self, kind: Kind) -> float:
        """CPU microseconds per request or event."""
        return self.cpu_s * 1e6 / self.count(kind)


class Summary(msgspec.Struct):
    """The repeats of one contender in one cell, in CPU microseconds per request or event."""

    median_us: float
    min_us: float
    max_us: float
    per_wall_s: float
    latency_p50_s: float
    latency_p99_s: float
    events_per_read: float


class Cell(msgspec.Struct):
    """One kind of batch: its plan and what each contender took for it."""

    kind: Kind
    connections: int
    requests: int
    tokens: int
    samples: dict[str, list[Sample]] = {}
    summaries: dict[str, Summary] = {}


class Verdict(msgspec.Struct):
    """Ours over another's in one cell; the limit is None where no target is set."""

    ours: str
    theirs: str
    kind: Kind
    connections: int
    ratio: float
    min_ratio: float
    max_ratio: float
    limit: float | None

    @property
    def word(self) -> str:
        """Pass or miss, empty without a target."""
        if self.limit is None:
            return ""
        return "pass" if self.ratio <= self.limit else "miss"


def summarise(samples: list[Sample], kind: Kind) -> Summary:
    """Medians over the repeats."""
    costs = [sample.cost_us(kind) for sample in samples]
    rates = [sample.count(kind) / sample.wall_s for sample in samples]
    return Summary(
        median_us=statistics.median(costs),
        min_us=min(costs),
        max_us=max(costs),
        per_wall_s=statistics.median(rates),
        latency_p50_s=statistics.median(sample.latency_p50_s for sample in samples),
        latency_p99_s=statistics.median(sample.latency_p99_s for sample in samples),
        events_per_read=statistics.median(sample.events / sample.reads for sample in samples),
    )


def compare(cell: Cell, theirs: str, ours: str = OURS) -> Verdict | None:
    """The ratio of the medians, and the lowest and highest ratio within one repeat."""
    if ours not in cell.samples or theirs not in cell.samples:
        return None
    pairs = zip(cell.samples[ours], cell.samples[theirs], strict=True)
    ratios = [one.cost_us(cell.kind) / other.cost_us(cell.kind) for one, other in pairs]
    has_target = ours == OURS and cell.connections == TARGET_CONNECTIONS
    return Verdict(
        ours=ours,
        theirs=theirs,
        kind=cell.kind,
        connections=cell.connections,
        ratio=cell.summaries[ours].median_us / cell.summaries[theirs].median_us,
        min_ratio=min(ratios),
        max_ratio=max(ratios),
        limit=TARGETS[cell.kind] if has_target else None,
    )


def table(cells: list[Cell], kind: Kind) -> list[str]:
    """The lines of one table."""
    title, what, scale = TITLES[kind]
    layout = "{:>5} {:<15} {:>8} {:>15} {:>11} {:>8} {:>8}"
    head = layout.format("conns", "contender", "median", "min-max", f"{what}/s", "p50 ms", "p99 ms")
    lines = [f"router CPU {title}", head if kind == "plain" else f"{head} events/read"]
    for cell in cells:
        for name, each in cell.summaries.items():
            line = layout.format(
                cell.connections,
                name,
                f"{each.median_us * scale:.2f}",
                f"{each.min_us * scale:.2f}-{each.max_us * scale:.2f}",
                f"{each.per_wall_s:.0f}",
                f"{each.latency_p50_s * 1e3:.1f}",
                f"{each.latency_p99_s * 1e3:.1f}",
            )
            lines.append(line if kind == "plain" else f"{line} {each.events_per_read:>11.2f}")
    return lines


def verdict_line(verdict: Verdict, repeats: int) -> str:
    """One ratio as text; fewer repeats than five decide nothing."""
    what = "request" if verdict.kind == "plain" else f"event ({verdict.kind})"
    line = (
        f"{verdict.ours} / {verdict.theirs}, CPU per {what} at {verdict.connections} connections: "
        f"{verdict.ratio:.2f} ({verdict.min_ratio:.2f}-{verdict.max_ratio:.2f})"
    )
    if verdict.limit is not None:
        line += f"  target <= {verdict.limit:.2f}: {verdict.word}"
        line += "" if repeats >= FEWEST_REPEATS else f" (provisional: {repeats} repeats)"
    return line
