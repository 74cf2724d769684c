"""A fleet in simulated time: the life of a request through router, engines and links.

A router is told what one can see from where it stands, and when: answers of legs, tokens as they
arrive, events with their delay. Routers that are baselines read the truth instead.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from simulation.cache import BlockCache
from simulation.clock import Clock
from simulation.engine import SimulatedEngine
from simulation.jobs import Job
from simulation.links import Links
from simulation.measure import Histogram
from simulation.profiles import Profile
from simulation.trace import BLOCK_TOKENS, Request


@dataclass(frozen=True, slots=True)
class Shape:
    """How many engines of which kind.

    Prefill engines have the first numbers, then decode engines; mixed engines do both alone.
    """

    num_prefill: int = 0
    num_decode: int = 0
    num_mixed: int = 0
    cache_blocks: int = 3000
    num_zones: int = 1

    @property
    def is_mixed(self) -> bool:
        """Whether engines serve requests alone."""
        return self.num_mixed > 0

    @property
    def num_engines(self) -> int:
        """All of them."""
        return self.num_prefill + self.num_decode + self.num_mixed

    def __str__(self) -> str:
        if self.is_mixed:
            return f"{self.num_mixed} mixed"
        return f"{self.num_prefill} prefill + {self.num_decode} decode"


@dataclass(slots=True)
class Flight:
    """One request under way.

    Attributes:
        prefill: Number of the engine of the first leg, None where one engine serves alone.
        decode: Number of the engine that answers.
        token: A router's own, untouched.
    """

    request: Request
    prefill: int | None = None
    decode: int = -1
    prefill_sent_s: float = 0.0
    prefill_done_s: float = 0.0
    decode_sent_s: float = 0.0
    first_token_s: float = 0.0
    end_s: float = 0.0
    num_cached_tokens: int = 0
    num_loaded_tokens: int = 0
    regret_s: float = 0.0
    token: object = None
    prefill_job: Job | None = None

    @property
    def time_to_first_token_s(self) -> float:
        """From arrival, both legs."""
        return self.first_token_s - self.request.arrival_s

    @property
    def inter_token_s(self) -> float:
        """Mean over the answer; 0 of a single token."""
        count = self.request.num_answer_tokens - 1
        return (self.end_s - self.first_token_s) / count if count else 0.0


class Judge(Protocol):
    """Knows the truth."""

    def regret_s(self, flight: Flight, now_s: float) -> float:
        """Seconds to the first token that a choice costs more than the best one would."""


class Router(Protocol):
    """Chooses engines."""

    def choose(self, flight: Flight, now_s: float) -> None:
        """Set `flight.prefill` and `flight.decode`."""

    def has_prefilled(self, flight: Flight, now_s: float) -> None:
        """The first leg's answer arrived; `flight.num_cached_tokens` is what it reports."""

    def has_first_token(self, flight: Flight, now_s: float) -> None:
        """The first token arrived."""

    def has_finished(self, flight: Flight, now_s: float) -> None:
        """The last token arrived."""

    def has_cache_events(
        self,
        number: int,
        removed: list[int],
        stored: list[tuple[int | None, list[int]]],
        now_s: float,
    ) -> None:
        """An engine's events arrived: evicted keys, then chains stored behind a parent."""


@dataclass(slots=True)
class Fleet:
    """The engines of one run, and what they have in common."""

    shape: Shape
    profile: Profile
    seed: int
    clock: Clock = field(default_factory=Clock)
    holders: dict[int, set[int]] = field(default_factory=dict)
    intervals: Histogram = field(default_factory=Histogram)
    engines: list[SimulatedEngine] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    judge: Judge | None = None
    links: Links = field(init=False)
    router: Router = field(init=False)
    _loss: random.Random = field(init=False)
    _events_until_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        profile, shape = self.profile, self.shape
        self._loss = random.Random(f"events-{self.seed}")
        self._events_until_s = [0.0] * shape.num_engines
        self.links = Links(
            profile.link_latency_s, profile.link_bytes_per_s, num_zones=shape.num_zones
        )
        for number in range(shape.num_engines):
            is_prefill = number < shape.num_prefill
            engine = SimulatedEngine(
                number,
                self.clock,
                BlockCache(number, shape.cache_blocks, self.holders),
                profile.engine_times(number, self.seed),
                self,
                budget_tokens=profile.budget_tokens if is_prefill else profile.mixed_budget_tokens,
                noise=profile.noise_of(number, self.seed),
                steps=self.intervals,
                does_hand_off=is_prefill,
            )
            self.engines.append(engine)

    @property
    def prefills(self) -> Sequence[SimulatedEngine]:
        """Engines that may take the first leg."""
        return self.engines[: self.shape.num_prefill]

    @property
    def decodes(self) -> Sequence[SimulatedEngine]:
        """Engines that may answer."""
        return self.engines[self.shape.num_prefill :]

    def run(self, requests: Sequence[Request], router: Router) -> None:
        """Serve all requests to their ends."""
        self.router = router
        for request in requests:
            self.clock.at(request.arrival_s, partial(self._arrive, request))
        self.clock.run()

    def _arrive(self, request: Request, now_s: float) -> None:
        flight = Flight(request)
        self.flights.append(flight)
        self.router.choose(flight, now_s)
        if self.judge is not None:
            flight.regret_s = self.judge.regret_s(flight, now_s)
        if flight.prefill is None:
            self._send_decode(flight, now_s)
            return
        flight.prefill_sent_s = now_s
        keys = request.blocks[: request.num_whole_blocks]
        job = flight.prefill_job = Job(flight, keys, request.num_prompt_tokens, 1)
        engine = self.engines[flight.prefill]
        self.clock.at(now_s + self.profile.http_s, lambda moment_s: engine.submit(job, moment_s))

    def _send_decode(self, flight: Flight, now_s: float) -> None:
        flight.decode_sent_s = now_s
        request = flight.request
        job = Job(
            flight,
            request.blocks[: request.num_whole_blocks],
            request.num_prompt_tokens,
            request.num_answer_tokens,
            is_loaded=flight.prefill is not None,
        )
        engine = self.engines[flight.decode]
        self.clock.at(now_s + self.profile.http_s, lambda moment_s: engine.submit(job, moment_s))

    def has_first_token(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        """See `Listener`."""
        flight = job.owner
        assert isinstance(flight, Flight)
        if engine.does_hand_off:
            return
        if flight.prefill is None:
            flight.num_cached_tokens = job.num_cached_blocks * BLOCK_TOKENS
        flight.first_token_s = now_s + self.profile.http_s
        self.clock.at(
            flight.first_token_s, lambda moment_s: self.router.has_first_token(flight, moment_s)
        )

    def has_finished(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        """See `Listener`."""
        flight = job.owner
        assert isinstance(flight, Flight)
        arrived_s = now_s + self.profile.http_s
        if engine.does_hand_off:
            flight.num_cached_tokens = job.num_cached_blocks * BLOCK_TOKENS
            self.clock.at(arrived_s, lambda moment_s: self._hand_off(flight, moment_s))
            return
        flight.end_s = arrived_s
        self.clock.at(arrived_s, lambda moment_s: self.router.has_finished(flight, moment_s))

    def _hand_off(self, flight: Flight, now_s: float) -> None:
        flight.prefill_done_s = now_s
        self.router.has_prefilled(flight, now_s)
        self._send_decode(flight, now_s)

    def wants_blocks(self, engine: SimulatedEngine, job: Job, now_s: float) -> None:
        """See `Listener`: fetch what the cache does not hold, then free the other end."""
        flight = job.owner
        assert isinstance(flight, Flight)
        assert flight.prefill is not None
        sender, prefill_job = self.engines[flight.prefill], flight.prefill_job
        assert prefill_job is not None
        flight.num_loaded_tokens = job.num_prompt_tokens - job.num_computed
        num_bytes = flight.num_loaded_tokens * self.profile.kv_bytes_per_token
        done_s = self.links.send(sender.number, engine.number, num_bytes, now_s)

        def arrive(moment_s: float) -> None:
            sender.release(prefill_job, moment_s)
            engine.loaded(job, moment_s)

        self.clock.at(done_s, arrive)

    def has_changed_cache(
        self,
        engine: SimulatedEngine,
        removed: list[int],
        stored: list[tuple[int | None, list[int]]],
        now_s: float,
    ) -> None:
        """See `Listener`: the events reach the router later."""
        number, profile = engine.number, self.profile
        arrive_s = now_s + profile.event_delay_s
        if profile.event_loss and self._loss.random() < profile.event_loss:
            arrive_s += profile.event_repair_s
        # What follows a gap is held back until the gap is replayed.
        arrive_s = self._events_until_s[number] = max(arrive_s, self._events_until_s[number])
        self.clock.at(
            arrive_s,
            lambda moment_s: self.router.has_cache_events(number, removed, stored, moment_s),
        )
