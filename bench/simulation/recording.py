"""The truth held against a recorded run of the real engine.

`recorded/vllm-0.32.0-cpu.json` is what `tools/record_timings.py` wrote. Every other measurement is
what `fit` sees; on the rest the truth's prediction is compared with what was measured. The fitted
engine is itself simulated for that, so the comparison holds chunks, budget and caching to account
and not the formula alone.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulation.cache import BlockCache
from simulation.clock import Clock
from simulation.engine import SimulatedEngine
from simulation.jobs import Job
from simulation.profiles import Profile, StepTimes

RECORDED = Path(__file__).parent / "recorded" / "vllm-0.32.0-cpu.json"


LEAST_SHARE = 0.1
"""Of the median: what took less was a stream that the recording process read in one go."""


class RecordingError(ValueError):
    """The recording is missing or not one."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """One measured prefill; see `tools/record_timings.py`."""

    num_tokens: int
    num_cached: int
    best_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """One measured mean of decode steps."""

    num_answers: int
    num_context: int
    best_s: float


@dataclass(frozen=True, slots=True)
class Recording:
    """What was measured of one engine."""

    budget_tokens: int
    prefills: tuple[Prefill, ...]
    steps: tuple[Step, ...]

    def part(self, parity: int) -> "Recording":
        """Every other measurement."""
        return Recording(self.budget_tokens, self.prefills[parity::2], self.steps[parity::2])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predicted against measured, over measurements that were not fitted.

    Attributes:
        prefill_error: Median relative error of prefills; `worst_prefill_error` the largest.
        step_error: The same of decode steps.
    """

    prefill_error: float
    worst_prefill_error: float
    step_error: float
    worst_step_error: float

    def __str__(self) -> str:
        return (
            f"held-out prefills: median error {100 * self.prefill_error:.1f} %, largest "
            f"{100 * self.worst_prefill_error:.1f} %; decode steps: median "
            f"{100 * self.step_error:.1f} %, largest {100 * self.worst_step_error:.1f} %"
        )


def read_recording(path: Path = RECORDED) -> Recording:
    """A recording from its file.

    Raises:
        RecordingError: It is missing or not one.
    """
    try:
        read: dict[str, Any] = json.loads(path.read_text())
        return Recording(
            budget_tokens=int(read["budget_tokens"]),
            prefills=tuple(
                Prefill(one["num_tokens"], one["num_cached"], one["best_s"])
                for one in read["prefills"]
            ),
            steps=tuple(
                Step(one["num_answers"], one["num_context"], one["best_s"])
                for one in read["steps"]
                if one["best_s"] > LEAST_SHARE * one["median_s"]
            ),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"no recording of the engine's times at {path}: {error}") from error


def fit(recording: Recording) -> tuple[StepTimes, float]:
    """The step times that explain a recording best, relative errors counting.

    Returns:
        Step times, and the seconds that a request spends outside of steps (HTTP, tokenising).
    """
    rows, targets = [], []
    for one in recording.steps:
        total = one.num_answers * one.num_context
        rows.append([1.0, 0.0, 0.0, one.num_answers, total, 0.0])
        targets.append(one.best_s)
    for prefill in recording.prefills:
        num_new = prefill.num_tokens - prefill.num_cached
        num_steps = -(-num_new // recording.budget_tokens)
        area = num_new * (prefill.num_cached + num_new / 2)
        rows.append([num_steps, num_new, area, 0.0, 0.0, 1.0])
        targets.append(prefill.best_s)
    measured = np.array(targets)
    weighted = np.array(rows, dtype=float) / measured[:, None]
    found = _non_negative(weighted, np.ones(len(targets)))
    base, token, area_s, sequence, context, outside = (float(value) for value in found)
    return StepTimes(base, token, area_s, sequence, context), outside


def _non_negative(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without negative coefficients, by trying which are zero (of six: 63 ways)."""
    size = matrix.shape[1]
    best, best_error = np.zeros(size), float("inf")
    for count in range(1, size + 1):
        for free in combinations(range(size), count):
            solved = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            error = float(np.sum((matrix[:, free] @ solved - target) ** 2))
            if solved.min() >= 0 and error < best_error:
                best, best_error = np.zeros(size), error
                best[list(free)] = solved
    return best


def compare(recording: Recording) -> Comparison:
    """Fit to one half of a recording, predict the other."""
    times, outside_s = fit(recording.part(0))
    held_out = recording.part(1)
    prefills = [
        abs(predict_prefill_s(times, outside_s, recording.budget_tokens, one) / one.best_s - 1)
        for one in held_out.prefills
    ]
    steps = [abs(predict_step_s(times, one) / one.best_s - 1) for one in held_out.steps]
    return Comparison(
        statistics.median(prefills), max(prefills), statistics.median(steps), max(steps)
    )


def predict_prefill_s(
    times: StepTimes, outside_s: float, budget_tokens: int, prefill: Prefill
) -> float:
    """A measured prefill as the simulated engine would have done it.

    The engine's cache blocks are 512 tokens here and 128 in the recording, so what is cached is
    handed over as computed.
    """
    ended = _Ends()
    engine = _engine(times, ended, budget_tokens)
    job = Job(None, (), prefill.num_tokens, 1)
    job.num_computed = prefill.num_cached
    engine.submit(job, 0.0)
    ended.clock.run()
    return ended.moments[0] + outside_s


def predict_step_s(times: StepTimes, step: Step) -> float:
    """A measured decode step as the simulated engine would have done it."""
    return times.base_s + times.decode_s(step.num_answers, step.num_answers * step.num_context)


def cpu_profile() -> Profile:
    """A fleet of engines like the recorded one: a tiny model on a CPU core each.

    Its links are assumed: loopback at 1 GB/s; 4 KiB of KV per token (4 layers, 2 KV heads of 64,
    float32).

    Raises:
        RecordingError: There is no recording.
    """
    recording = read_recording()
    times, outside_s = fit(recording)
    return Profile(
        name="vllm-0.32.0-cpu",
        times=times,
        kv_bytes_per_token=4096,
        link_bytes_per_s=1e9,
        link_latency_s=0.005,
        budget_tokens=recording.budget_tokens,
        mixed_budget_tokens=recording.budget_tokens,
        http_s=outside_s / 2,
    )


class _Ends:
    """Notes the moments of first tokens."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.moments: list[float] = []

    def has_first_token(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        self.moments.append(now_s)

    def has_finished(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        pass

    def wants_blocks(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        pass

    def has_changed_cache(
        self,
        engine: SimulatedEngine,
        removed: Sequence[int],
        stored: Sequence[tuple[int | None, list[int]]],
        now_s: float,
    ) -> None:
        pass


def _engine(times: StepTimes, ended: _Ends, budget_tokens: int) -> SimulatedEngine:
    cache = BlockCache(0, 1000, {})
    return SimulatedEngine(0, ended.clock, cache, times, ended, budget_tokens=budget_tokens)
