"""The truth about one engine: continuous batching over a paged cache, step by step.

**Rules**, as vLLM's scheduler has them (`v1/core/sched/scheduler.py @ 0.32.0`):

* A step computes one token for every running answer and, within its token budget, chunks of
  prompts: those begun first, then waiting ones in the order they came.
* A waiting request starts when blocks for its whole prompt and answer are free (the engine itself
  may preempt instead; room for the answer is reserved here). What it finds in the cache is looked
  up then, whole blocks of at most its prompt less one token; what it computes can be hit by the
  request scheduled behind it.
* A request whose KV comes from elsewhere holds its blocks while they are loaded, without taking
  tokens of the budget, and then computes the last prompt token alone.

**Theory of operation.** While a prompt is being computed, every step is an event of the clock. When
there are only answers to write, the times of the following steps are known (each one's context
grows by one token per answer), so one event stands for all steps until the first answer ends; an
arrival cuts that run short at the end of the step it falls into. So the cost of a simulation grows
with the number of prompts and not with the number of tokens, and nothing is approximated but the
noise, which is drawn once per run of steps.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from simulation.cache import BlockCache
from simulation.clock import Clock
from simulation.jobs import Job, Run
from simulation.measure import Histogram
from simulation.profiles import StepTimes
from simulation.trace import BLOCK_TOKENS

MOST_SEQUENCES = 256
"""Requests that run at once (`--max-num-seqs`; vLLM's own default for servers is 256 to 1,024)."""


class Listener(Protocol):
    """Who is told what an engine did."""

    def has_first_token(self, engine: "SimulatedEngine", job: Job, now_s: float) -> None:
        """The prompt is computed."""

    def has_finished(self, engine: "SimulatedEngine", job: Job, now_s: float) -> None:
        """The last token is there. A prefill leg's blocks stay held until `release`."""

    def wants_blocks(self, engine: "SimulatedEngine", job: Job, now_s: float) -> None:
        """Blocks are ready to be loaded into; `loaded` is to be called when they are."""

    def has_changed_cache(
        self,
        engine: "SimulatedEngine",
        removed: list[int],
        stored: list[tuple[int | None, list[int]]],
        now_s: float,
    ) -> None:
        """A step ended that evicted blocks, or stored chains behind a parent."""


class SimulatedEngine:
    """One engine.

    Args:
        budget_tokens: What one step may compute (`--max-num-batched-tokens`).
        noise: Draws the factor of a step's time.
        steps: Where the times between tokens are counted.
        does_hand_off: Whether finished jobs' blocks stay held until `release`.

    Attributes:
        queued_s: Seconds of computing that waiting jobs will take, as it looked when they came.
        promised: Keys of waiting jobs' blocks, and how often.
        busy_s: Seconds spent in steps.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        cache: BlockCache,
        times: StepTimes,
        listener: Listener,
        *,
        budget_tokens: int,
        noise: Callable[[], float] | None = None,
        steps: Histogram | None = None,
        does_hand_off: bool = False,
    ) -> None:
        self.number = number
        self.cache = cache
        self.times = times
        self.does_hand_off = does_hand_off
        self.waiting: deque[Job] = deque()
        self.num_decoding = 0
        self.num_context_tokens = 0
        self.num_steps = 0
        self.busy_s = 0.0
        self.step_ends_s = 0.0
        self.queued_s = 0.0
        self.promised: dict[int, int] = {}
        self._clock = clock
        self._listener = listener
        self._budget_tokens = budget_tokens
        self._noise = noise
        self._intervals = steps if steps is not None else Histogram()
        self._ready: deque[Job] = deque()
        self._computing: list[Job] = []
        self._chunks: list[tuple[Job, int]] = []
        self._decoding: dict[int, list[Job]] = {}
        self._num_running = 0
        self._run: Run | None = None
        self._is_in_chunk_step = False
        self._removed: list[int] = []
        self._stored: list[tuple[int | None, list[int]]] = []

    @property
    def num_waiting(self) -> int:
        """Jobs that have not started."""
        return len(self.waiting)

    @property
    def num_requests(self) -> int:
        """Jobs waiting or running."""
        return len(self.waiting) + self._num_running

    def submit(self, job: Job, now_s: float) -> None:
        """Queue a job."""
        self.waiting.append(job)
        job.queued_s = self.estimate_s(job)
        self.queued_s += job.queued_s
        for key in job.keys:
            self.promised[key] = self.promised.get(key, 0) + 1
        self._poke(now_s)

    def loaded(self, job: Job, now_s: float) -> None:
        """The blocks that were asked for by `wants_blocks` are filled."""
        self._name_blocks(job, job.num_prompt_tokens)
        job.num_computed = job.num_prompt_tokens - 1
        self._ready.append(job)
        self._poke(now_s)

    def release(self, job: Job, now_s: float) -> None:
        """Nobody needs a finished prefill leg's blocks any more."""
        self.cache.give_back(job.held, job.num_plain)
        if self.waiting:
            self._poke(now_s)

    def estimate_s(self, job: Job) -> float:
        """Seconds of computing that a job would take of an empty engine with this cache, now."""
        if job.is_loaded:
            return self.times.chunk_s(1, job.num_prompt_tokens)
        num_cached = BLOCK_TOKENS * self.cache.match(job.keys[: job.most_cached])
        return self.times.chunk_s(job.num_prompt_tokens - num_cached, num_cached)

    def remaining_s(self, now_s: float) -> float:
        """Seconds until a prompt submitted now would be started."""
        left = max(0.0, self.step_ends_s - now_s) if self._is_in_chunk_step else 0.0
        for job in self._computing:
            left += self.times.chunk_s(job.num_prompt_tokens - job.num_computed, job.num_computed)
        return left + self.queued_s

    def _poke(self, now_s: float) -> None:
        """Something new may be scheduled: at once if idle, else at the end of this step."""
        if self._is_in_chunk_step:
            return
        if self._run is None:
            self._begin(now_s)
            return
        self._run.cut(now_s)
        run = self._run
        self._clock.at(run.end_s, lambda moment_s: self._end_run(run, moment_s))

    def _begin(self, now_s: float) -> None:
        """Choose what the next step computes, and start it."""
        budget = self._budget_tokens - self.num_decoding
        chunks: list[tuple[Job, int]] = []
        for job in self._computing:
            budget = self._add_chunk(chunks, job, budget)
        while budget > 0 and (following := self._next_job(now_s)) is not None:
            self._computing.append(following)
            budget = self._add_chunk(chunks, following, budget)
        if chunks:
            self._chunks = chunks
            self._is_in_chunk_step = True
            step_s = self._chunk_step_s(chunks) * self._noise_factor()
            self.busy_s += step_s
            self.step_ends_s = now_s + step_s
            self._intervals.add(step_s, self.num_decoding)
            self._clock.at(self.step_ends_s, self._end_chunk_step)
            return
        self._tell_cache(now_s)
        if self.num_decoding:
            self._begin_run(now_s)

    def _add_chunk(self, chunks: list[tuple[Job, int]], job: Job, budget: int) -> int:
        size = min(budget, job.num_prompt_tokens - job.num_computed)
        if size > 0:
            chunks.append((job, size))
            self._name_blocks(job, job.num_computed + size)
        return budget - size

    def _next_job(self, now_s: float) -> Job | None:
        """The next job that can compute; jobs that load on the way are sent to load."""
        if self._ready:
            return self._ready.popleft()
        while self.waiting and self._num_running < MOST_SEQUENCES:
            job = self.waiting[0]
            matched = job.keys[: self.cache.match(job.keys[: job.most_cached])]
            num_new = job.num_blocks - len(matched)
            if not self.cache.has_room(matched, num_new):
                return None
            self.cache.hold(matched)
            self.waiting.popleft()
            self.queued_s = max(0.0, self.queued_s - job.queued_s)
            self._num_running += 1
            self._start(job, matched, num_new)
            if not job.is_loaded:
                return job
            self._listener.wants_blocks(self, job, now_s)
        return None

    def _start(self, job: Job, matched: Sequence[int], num_new: int) -> None:
        for key in job.keys:
            if self.promised[key] == 1:
                del self.promised[key]
            else:
                self.promised[key] -= 1
        self._removed += self.cache.take(num_new)
        job.held = list(matched)
        job.num_named = job.num_cached_blocks = len(matched)
        job.num_computed = max(job.num_computed, BLOCK_TOKENS * len(matched))
        job.num_plain = num_new

    def _name_blocks(self, job: Job, num_tokens: int) -> None:
        """Let whole blocks up to a token be found by others."""
        end = min(num_tokens // BLOCK_TOKENS, len(job.keys))
        if end <= job.num_named:
            return
        fresh = job.keys[job.num_named : end]
        new = self.cache.name(fresh)
        if len(new) == len(fresh):
            parent = job.keys[job.num_named - 1] if job.num_named else None
            self._stored.append((parent, list(new)))
        else:
            known = set(new)
            for index in range(job.num_named, end):
                if job.keys[index] in known:
                    parent = job.keys[index - 1] if index else None
                    self._stored.append((parent, [job.keys[index]]))
        job.held += new
        job.num_plain -= len(new)
        job.num_named = end

    def _chunk_step_s(self, chunks: list[tuple[Job, int]]) -> float:
        times = self.times
        step_s = times.base_s + times.decode_s(self.num_decoding, self.num_context_tokens)
        for job, size in chunks:
            step_s += times.chunk_s(size, job.num_computed)
        return step_s

    def _end_chunk_step(self, now_s: float) -> None:
        self._is_in_chunk_step = False
        self._tell_cache(now_s)
        self._write_tokens(1, now_s)
        for job, size in self._chunks:
            job.num_computed += size
            if job.num_computed == job.num_prompt_tokens:
                self._computing.remove(job)
                self._have_first_token(job, now_s)
        self._chunks = []
        self._begin(now_s)

    def _have_first_token(self, job: Job, now_s: float) -> None:
        job.first_token_s = now_s
        self._listener.has_first_token(self, job, now_s)
        if job.num_answer_tokens == 1:
            self._finish(job, now_s)
            return
        job.finish_step = self.num_steps + job.num_answer_tokens - 1
        self._decoding.setdefault(job.finish_step, []).append(job)
        self.num_decoding += 1
        self.num_context_tokens += job.num_prompt_tokens + 1

    def _begin_run(self, now_s: float) -> None:
        times = self.times
        factor = self._noise_factor()
        first_s = times.base_s + times.decode_s(self.num_decoding, self.num_context_tokens)
        growth_s = times.per_context_token_s * self.num_decoding
        num_steps = min(self._decoding) - self.num_steps
        run = self._run = Run(now_s, first_s * factor, growth_s * factor, num_steps)
        self._clock.at(run.end_s, lambda moment_s: self._end_run(run, moment_s))

    def _end_run(self, run: "Run", now_s: float) -> None:
        if run is not self._run or now_s < run.end_s:
            return  # cut short, and called back for its former end
        self._run = None
        duration_s = now_s - run.start_s
        self.busy_s += duration_s
        self._intervals.add(duration_s / run.num_steps, self.num_decoding * run.num_steps)
        self._write_tokens(run.num_steps, now_s)
        self._begin(now_s)

    def _write_tokens(self, num_steps: int, now_s: float) -> None:
        """Count steps, and end the answers that they completed."""
        self.num_steps += num_steps
        self.num_context_tokens += num_steps * self.num_decoding
        for job in self._decoding.pop(self.num_steps, ()):
            self.num_decoding -= 1
            self.num_context_tokens -= job.num_prompt_tokens + job.num_answer_tokens
            self._finish(job, now_s)

    def _finish(self, job: Job, now_s: float) -> None:
        self._num_running -= 1
        if not self.does_hand_off:
            self.cache.give_back(job.held, job.num_plain)
        self._listener.has_finished(self, job, now_s)

    def _tell_cache(self, now_s: float) -> None:
        if self._removed or self._stored:
            self._listener.has_changed_cache(self, self._removed, self._stored, now_s)
            self._removed, self._stored = [], []

    def _noise_factor(self) -> float:
        return 1.0 if self._noise is None else self._noise()
