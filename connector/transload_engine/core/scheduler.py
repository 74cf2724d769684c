"""Which requests are computed in the next step, and which of their blocks are taken for it.

After vLLM 0.32.0's `v1/core/sched/scheduler.py:Scheduler.schedule`, first come first served.

**Rules**

* Running requests come first, then those whose blocks were loaded, then the waiting, in order.
* A request is admitted only if all its tokens so far fit, though only a part is computed first.
* A running request that finds no block puts back the one that was admitted last, itself if need
  be; nobody is admitted in that step.
* A load is begun only in a step that has tokens left, so never beside a prompt of which more is to
  be computed later: vLLM's reserve for such prompts has nothing to hold back here.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from transload_engine.core.cache import PrefixCache
from transload_engine.core.handoff import Handoff
from transload_engine.core.request import Finish, Request, Status
from transload_engine.core.settings import CoreSettings


@dataclass(frozen=True, slots=True)
class Load:
    """Blocks to be fetched from another engine; the core's `end_load` must follow.

    Attributes:
        num_blocks: To be filled.
        duration_s: From now to the last byte, of a simulated load.
        block_ids: Of the whole prompt; the last `num_blocks` are to be filled.
        num_tokens: Of the prompt.
        num_local_tokens: The first of these, which are here; whole blocks.
        prompt: Its tokens.
    """

    request_id: str
    handoff: Handoff
    num_blocks: int
    duration_s: float
    block_ids: tuple[int, ...]
    num_tokens: int
    num_local_tokens: int
    prompt: Sequence[int]


@dataclass
class Counters:
    """What happened since the start, by vLLM's names where it has one."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    external_prefix_cache_queries: int = 0
    external_prefix_cache_hits: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    num_failed_loads: int = 0
    num_loads: int = 0
    loaded_bytes: int = 0
    finished: dict[Finish, int] = field(default_factory=lambda: dict.fromkeys(Finish, 0))


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's part in a step.

    Attributes:
        num_preemptions: The request's at that time; if it has more since, the step is void for it.
        gains_token: Whether the step ends with a token of its answer.
    """

    request: Request
    num_new: int
    num_preemptions: int
    gains_token: bool
    is_prefill: bool


class Scheduler:
    """Queues of one engine. Whoever owns it ends requests; it never does.

    Attributes:
        waiting: To be admitted, or admitted again.
        loaded: Hold loaded blocks, of which the last token is still to be computed.
        running: In the order of admission.
        loads: Begun since the owner last emptied it.
    """

    def __init__(self, settings: CoreSettings, cache: PrefixCache, counters: Counters) -> None:
        self.settings = settings
        self.counters = counters
        self.waiting: deque[Request] = deque()
        self.loaded: deque[Request] = deque()
        self.running: list[Request] = []
        self.loads: list[Load] = []
        self._cache = cache
        self._link_free_s = 0.0

    def remove(self, request: Request) -> None:
        """Take a request out of whatever queue it is in."""
        match request.status:
            case Status.RUNNING:
                self.running.remove(request)
            case Status.WAITING | Status.PREEMPTED:
                self.waiting.remove(request)
            case Status.LOADED:
                self.loaded.remove(request)
            case Status.LOADING | Status.FINISHED:
                pass

    def schedule(self, now: float) -> list[Scheduled]:
        """Compose the next step; empty if nothing can be computed now."""
        batch: list[tuple[Request, int]] = []
        budget = self.settings.max_batch_tokens
        num_put_back = self.counters.num_preemptions
        position = 0
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            num_new = min(self._num_wanted(request), budget)
            if num_new > 0:
                if not self._make_room(request, num_new):
                    break
                self._compute(request, num_new, batch)
                budget -= num_new
            position += 1
        if self.counters.num_preemptions == num_put_back:
            self._admit_all(batch, budget, now)
        return [self._advance(request, num_new) for request, num_new in batch]

    def _num_wanted(self, request: Request) -> int:
        """Tokens to compute next: none while the last one of the answer is under way."""
        num_total = len(request.tokens) + request.num_in_flight
        is_last = request.num_answer + request.num_in_flight >= request.ask.max_tokens
        if request.num_in_flight and (is_last or num_total >= self.settings.max_model_tokens):
            return 0
        return num_total - request.num_computed

    def _make_room(self, request: Request, num_new: int) -> bool:
        while not self._cache.extend(request, request.num_computed + num_new):
            victim = self.running.pop()
            self._put_back(victim)
            if victim is request:
                return False
        return True

    def _put_back(self, request: Request) -> None:
        self._cache.release(request)
        request.status = Status.PREEMPTED
        request.num_computed = 0
        request.num_in_flight = 0
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self.waiting.appendleft(request)

    def _compute(self, request: Request, num_new: int, batch: list[tuple[Request, int]]) -> None:
        self._cache.store(request, min(request.num_computed + num_new, len(request.tokens)))
        batch.append((request, num_new))

    def _admit_all(self, batch: list[tuple[Request, int]], budget: int, now: float) -> None:
        while budget > 0 and len(self.running) < self.settings.max_requests:
            if self.loaded:
                request = self.loaded.popleft()
                self._cache.store(request, request.num_computed)
                request.num_computed = min(request.num_computed, len(request.tokens) - 1)
            elif self.waiting and self._admit(self.waiting[0], budget, now):
                request = self.waiting.popleft()
                if request.status is Status.LOADING:
                    continue
            else:
                break
            request.status = Status.RUNNING
            self.running.append(request)
            num_new = min(len(request.tokens) - request.num_computed, budget)
            self._compute(request, num_new, batch)
            budget -= num_new

    def _admit(self, request: Request, budget: int, now: float) -> bool:
        hits = self._cache.match(request)
        num_local = len(hits) * request.block_size
        if request.has_to_load:
            num_needed = request.num_prompt
        else:
            num_needed = num_local + min(len(request.tokens) - num_local, budget)
        if not self._cache.admit(request, hits, num_needed):
            return False
        num_loaded = num_needed - num_local if request.has_to_load else 0
        self._count_admission(request, num_local, num_loaded)
        request.num_computed = num_local + num_loaded
        if request.has_to_load:
            self._start_load(request, len(request.blocks) - len(hits), now)
        return True

    def _count_admission(self, request: Request, num_local: int, num_loaded: int) -> None:
        if request.num_preemptions:
            return
        request.num_cached = num_local + num_loaded
        counters = self.counters
        if self.settings.caches_prefixes:
            counters.prefix_cache_queries += len(request.tokens)
            counters.prefix_cache_hits += num_local
        if self.settings.has_connector:
            counters.external_prefix_cache_queries += len(request.tokens) - num_local
            counters.external_prefix_cache_hits += num_loaded

    def _start_load(self, request: Request, num_blocks: int, now: float) -> None:
        profile = self.settings.profile
        self._link_free_s = max(self._link_free_s, now) + profile.transfer_s(num_blocks)
        duration_s = self._link_free_s - now + profile.transfer_base_s
        request.status = Status.LOADING
        request.has_to_load = False
        assert request.ask.handoff is not None
        self.loads.append(
            Load(
                request_id=request.request_id,
                handoff=request.ask.handoff,
                num_blocks=num_blocks,
                duration_s=duration_s,
                block_ids=tuple(block.block_id for block in request.blocks),
                num_tokens=request.num_prompt,
                num_local_tokens=(len(request.blocks) - num_blocks) * request.block_size,
                prompt=request.ask.prompt,
            )
        )

    def _advance(self, request: Request, num_new: int) -> Scheduled:
        is_prefill = request.num_computed < request.num_prompt
        request.num_computed += num_new
        gains_token = request.num_computed >= len(request.tokens) + request.num_in_flight
        request.num_in_flight += gains_token
        return Scheduled(request, num_new, request.num_preemptions, gains_token, is_prefill)
