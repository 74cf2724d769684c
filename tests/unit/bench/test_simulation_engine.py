"""The truth's engine against one that takes every step by itself."""

import random
from dataclasses import dataclass, field
from functools import partial

import pytest

from simulation.cache import BlockCache
from simulation.clock import Clock
from simulation.engine import SimulatedEngine
from simulation.jobs import Job
from simulation.measure import Histogram
from simulation.profiles import StepTimes

TIMES = StepTimes(8e-3, 40e-6, 1.3e-9, 50e-6, 50e-9)


@dataclass
class Notes:
    """What an engine said, by the owner of the job."""

    first: dict[object, float] = field(default_factory=dict)
    end: dict[object, float] = field(default_factory=dict)
    stored: list[tuple[int | None, list[int]]] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    loading: list[Job] = field(default_factory=list)

    def has_first_token(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        self.first[job.owner] = now_s

    def has_finished(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        self.end[job.owner] = now_s

    def wants_blocks(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        self.loading.append(job)

    def has_changed_cache(
        self,
        engine: SimulatedEngine,
        removed: list[int],
        stored: list[tuple[int | None, list[int]]],
        now_s: float,
    ) -> None:
        self.removed += removed
        self.stored += stored


def engine_of(
    notes: Notes, clock: Clock, *, blocks: int = 1000, budget: int = 2048
) -> SimulatedEngine:
    cache = BlockCache(0, blocks, {})
    return SimulatedEngine(0, clock, cache, TIMES, notes, budget_tokens=budget)


@dataclass
class Plain:
    """One request of the step-by-step engine."""

    number: int
    arrival_s: float
    num_left: int
    num_answer: int
    num_computed: int = 0
    num_written: int = 0


def step_by_step(
    arrivals: list[tuple[float, int, int]], budget_tokens: int
) -> tuple[dict[object, float], dict[object, float]]:
    """Every step one by one, nothing cached: first tokens and ends by number."""
    coming = [Plain(n, at, prompt, answer) for n, (at, prompt, answer) in enumerate(arrivals)]
    computing: list[Plain] = []
    writing: list[Plain] = []
    first: dict[object, float] = {}
    end: dict[object, float] = {}
    now_s = 0.0
    while coming or computing or writing:
        if not computing and not writing:
            now_s = max(now_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now_s:
            computing.append(coming.pop(0))
        step_s = TIMES.base_s
        budget = budget_tokens - len(writing)
        for one in writing:
            step_s += TIMES.per_sequence_s
            step_s += TIMES.per_context_token_s * (one.num_computed + one.num_written)
        chunks = []
        for one in computing:
            size = min(budget, one.num_left)
            if size > 0:
                step_s += TIMES.chunk_s(size, one.num_computed)
                chunks.append((one, size))
                budget -= size
        now_s += step_s
        for one in list(writing):
            one.num_written += 1
            if one.num_written == one.num_answer:
                writing.remove(one)
                end[one.number] = now_s
        for one, size in chunks:
            one.num_computed += size
            one.num_left -= size
            if not one.num_left:
                computing.remove(one)
                first[one.number] = now_s
                one.num_written = 1
                if one.num_answer > 1:
                    writing.append(one)
                else:
                    end[one.number] = now_s
    return first, end


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [300, 2048])
def test_runs_of_steps_end_when_single_steps_would(seed: int, budget: int) -> None:
    chance = random.Random(seed)
    arrivals: list[tuple[float, int, int]] = []
    at_s = 0.0
    for _ in range(60):
        at_s += chance.expovariate(8.0)
        arrivals.append((at_s, chance.randrange(1, 3000), chance.randrange(1, 120)))
    notes, clock = Notes(), Clock()
    engine = engine_of(notes, clock, budget=budget)
    for number, (moment_s, prompt, answer) in enumerate(arrivals):
        job = Job(number, (), prompt, answer)
        clock.at(moment_s, partial(engine.submit, job))

    clock.run()

    first, end = step_by_step(arrivals, budget)
    assert notes.first == pytest.approx(first)
    assert notes.end == pytest.approx(end)


def test_each_token_of_an_answer_is_an_interval_but_the_first() -> None:
    notes, clock, intervals = Notes(), Clock(), Histogram()
    cache = BlockCache(0, 100, {})
    engine = SimulatedEngine(0, clock, cache, TIMES, notes, budget_tokens=2048, steps=intervals)
    engine.submit(Job("a", (), 100, 11), 0.0)
    clock.run()

    assert sum(intervals._counts.values()) == 10
    assert intervals.percentile(50) == pytest.approx(TIMES.base_s + TIMES.decode_s(1, 106), 0.02)


def test_a_prefix_that_is_held_is_not_computed_again() -> None:
    notes, clock = Notes(), Clock()
    engine = engine_of(notes, clock)
    engine.submit(Job("a", (1, 2), 1300, 1), 0.0)
    clock.run()
    again = Job("b", (1, 2), 1300, 1)
    engine.submit(again, clock.now_s)
    clock.run()

    assert again.num_cached_blocks == 2
    assert notes.stored == [(None, [1, 2])]
    spent_s = notes.first["b"] - notes.first["a"]
    assert spent_s == pytest.approx(TIMES.base_s + TIMES.chunk_s(1300 - 1024, 1024))


def test_a_prompt_that_is_held_whole_computes_its_last_block() -> None:
    notes, clock = Notes(), Clock()
    engine = engine_of(notes, clock)
    for name in ("a", "b"):
        job = Job(name, (1, 2), 1024, 1)
        engine.submit(job, clock.now_s)
        clock.run()

    assert job.num_cached_blocks == 1


def test_waits_for_blocks_that_running_requests_hold() -> None:
    notes, clock = Notes(), Clock()
    engine = engine_of(notes, clock, blocks=4)
    engine.submit(Job("a", (1, 2), 1024, 100), 0.0)
    engine.submit(Job("b", (3, 4), 1024, 2), 0.0)
    clock.run()

    assert notes.first["b"] > notes.end["a"]
    assert notes.removed == [2]


def test_loads_without_computing_but_the_last_token() -> None:
    notes, clock = Notes(), Clock()
    engine = engine_of(notes, clock)
    job = Job("a", (1, 2), 1100, 3, is_loaded=True)
    engine.submit(job, 0.0)
    assert notes.loading == [job]
    assert notes.stored == []
    clock.at(1.0, lambda now_s: engine.loaded(job, now_s))
    clock.run()

    assert notes.first["a"] == pytest.approx(1.0 + TIMES.base_s + TIMES.chunk_s(1, 1099))
    assert notes.stored == [(None, [1, 2])]
    assert engine.cache.num_free == engine.cache.capacity


def test_a_prefill_legs_blocks_are_held_until_released() -> None:
    notes, clock = Notes(), Clock()
    cache = BlockCache(0, 10, {})
    engine = SimulatedEngine(0, clock, cache, TIMES, notes, budget_tokens=2048, does_hand_off=True)
    job = Job("a", (1, 2), 1100, 1)
    engine.submit(job, 0.0)
    clock.run()
    assert cache.num_free == 7

    engine.release(job, clock.now_s)
    assert cache.num_free == 10
