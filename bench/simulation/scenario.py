"""One fleet, one list of requests, one policy: run it and measure it."""

import functools
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from simulation.baselines import BASELINES
from simulation.fleet import Fleet, Router, Shape
from simulation.measure import Figures, Slo, figures_of
from simulation.oracle import Oracle, OracleRouter
from simulation.ours import CoreRouter, TokenIds, Variant
from simulation.profiles import Profile
from simulation.trace import BLOCK_TOKENS, Request, speed_up
from transload_router.core.policy.pricing import Weights

OURS = "cost"
ORACLE = "oracle"

VARIANTS: dict[str, Variant] = {
    OURS: Variant(),
    "cost, no events": Variant(has_events=False),
    "cost, no predictions": Variant(has_predictions=False),
    "cost, no cost model": Variant(policy="prefix"),
    "cost, no bounded load": Variant(weights=Weights(load_factor=inf)),
    "cost, no token target": Variant(weights=Weights(breach_weight=0.0)),
    "cost, own time only": Variant(weights=Weights(delay_weight=0.0, cache_weight=0.0)),
}
"""Ours whole, and with one part taken out. Without the cost model: the longest prefix within the
load bound (policy `prefix`)."""

ABLATIONS = tuple(name for name in VARIANTS if name != OURS)
ALL = (*BASELINES, OURS, ORACLE)

MOST_JUDGED = 64
"""Engines of the largest fleet whose choices are judged by the oracle; it looks at every engine."""

WRITING_STEP_S = 0.05
"""A step of an engine that writes as many answers as it should: half of the default SLO."""

LEVELS = {"low": 0.4, "medium": 0.7, "high": 0.95, "beyond": 1.15}
"""Nominal load by name; see `nominal_speed`."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What all policies are given alike.

    Attributes:
        levels: Name and speed of each.
    """

    requests: Sequence[Request]
    shape: Shape
    profile: Profile
    levels: Sequence[tuple[str, float]]
    slo: Slo
    seed: int


def make_router(name: str, fleet: Fleet, seed: int, tokens: TokenIds) -> Router:
    """A policy by its name.

    Raises:
        KeyError: There is none.
    """
    if name in VARIANTS:
        return CoreRouter(fleet, seed, VARIANTS[name], tokens)
    if name == ORACLE:
        return OracleRouter(fleet, seed)
    return BASELINES[name](fleet, seed)


def run_one(scenario: Scenario, policy: str, level: str, speed: float) -> Figures:
    """Run one policy at one level."""
    began_s = time.process_time()
    fleet = Fleet(scenario.shape, scenario.profile, scenario.seed)
    if scenario.shape.num_engines <= MOST_JUDGED:
        fleet.judge = Oracle(fleet)
    router = make_router(policy, fleet, scenario.seed, _tokens())
    gc.disable()  # nothing here is circular but the fleet, which goes as a whole
    fleet.run(speed_up(scenario.requests, speed), router)
    cpu_s = time.process_time() - began_s
    figures = figures_of(fleet, policy, level, speed, scenario.slo, cpu_s)
    del fleet, router
    gc.enable()
    gc.collect()
    return figures


def run_all(scenario: Scenario, policies: Sequence[str], num_processes: int) -> Iterator[Figures]:
    """All policies at all levels, as they end."""
    cells = [(policy, *level) for level in scenario.levels for policy in policies]
    run: Callable[[tuple[str, str, float]], Figures] = functools.partial(_run_cell, scenario)
    if num_processes == 1:
        yield from map(run, cells)
        return
    with multiprocessing.get_context("fork").Pool(num_processes) as pool:
        yield from pool.imap(run, cells)


def nominal_speed(
    requests: Sequence[Request], shape: Shape, profile: Profile, load: float
) -> float:
    """How fast a trace must run to ask for so much of the fleet.

    Load 1 is where the busier pool has no time left: prefill engines computing all prompts less
    what an endless shared cache would hold, or decode engines writing all answers at
    `WRITING_STEP_S` a token; of a mixed fleet, every engine doing its share of both. No policy
    reaches the ideal hit rate, nor an even load at all times, so 1 is more than a fleet can bear.
    """
    held: set[int] = set()
    computing_s = writing_s = 0.0
    times = profile.times
    for request in requests:
        keys = request.blocks[: request.most_cached_blocks]
        count = next((n for n, key in enumerate(keys) if key not in held), len(keys))
        num_cached = count * BLOCK_TOKENS
        computing_s += times.chunk_s(request.num_prompt_tokens - num_cached, num_cached)
        held.update(request.blocks[: request.num_whole_blocks])
        # The share of a step that an answer takes, where steps are as long as they may be.
        own_s = times.decode_s(1, request.num_prompt_tokens + request.num_answer_tokens // 2)
        share = own_s / (WRITING_STEP_S - times.base_s)
        writing_s += request.num_answer_tokens * WRITING_STEP_S * share
    span_s = max(1e-9, requests[-1].arrival_s)
    if shape.is_mixed:
        busy_s = (computing_s + writing_s) / shape.num_mixed
    else:
        busy_s = max(computing_s / shape.num_prefill, writing_s / shape.num_decode)
    return load * span_s / busy_s


def _run_cell(scenario: Scenario, cell: tuple[str, str, float]) -> Figures:
    return run_one(scenario, *cell)


@functools.cache
def _tokens() -> TokenIds:
    return TokenIds()
