"""What a core of either kind does: its requests from their admission to their end.

Requests, the blocks they hold and the events of it all. Knows no clock, no other engine, and
neither where tokens come from nor who holds blocks for others: that is what its kinds differ in.
"""

import abc
from dataclasses import dataclass
from typing import Any

from transload_engine.core.blocks import Block, BlockPool
from transload_engine.core.cache import PrefixCache
from transload_engine.core.events import Event
from transload_engine.core.handoff import Handoff, Origin
from transload_engine.core.hashes import block_hash
from transload_engine.core.request import Ask, Finish, Request, Status
from transload_engine.core.runner import Chosen
from transload_engine.core.scheduler import Counters, Load, Scheduled, Scheduler
from transload_engine.core.settings import CoreSettings


@dataclass(frozen=True, slots=True)
class Output:
    """What one request gained in a step.

    Attributes:
        token_ids: One token, or none with an end that is no token's.
        num_cached_tokens: Prompt tokens that were not computed; with the first output only.
        stop_reason: The stop token that ended the answer, None for the end-of-sequence token.
        handoff: `kv_transfer_params` of the answer.
        chosen: The token, with what was asked to be told about it.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish: Finish | None = None
    num_cached_tokens: int | None = None
    stop_reason: int | None = None
    handoff: dict[str, Any] | None = None
    chosen: Chosen | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What a step brought.

    Attributes:
        duration_s: Of the simulated step that begins now; None where none does.
    """

    events: list[Event]
    outputs: list[Output]
    loads: list[Load]
    duration_s: float | None


class ServingCore(abc.ABC):
    """See the module.

    Args:
        settings: Sizes, times and policies.
        origin: What others read blocks under; an engine that is restarted has a new one.
        eos: Id of the token that ends an answer.

    Raises:
        ValueError: The settings' hashes cannot be computed here.
    """

    def __init__(self, settings: CoreSettings, origin: Origin, eos: int) -> None:
        self.settings = settings
        self.origin = origin
        self.counters = Counters()
        pool = BlockPool(
            settings.num_blocks,
            has_int_names=settings.has_int_names,
            has_events=settings.has_events,
        )
        self._cache = PrefixCache(pool, settings.block_size, is_enabled=settings.caches_prefixes)
        self._eos = eos
        self._block_hash = block_hash(settings.hash_algorithm, settings.hash_seed)
        self._requests: dict[str, Request] = {}
        self._scheduler = Scheduler(settings, self._cache, self.counters)
        self._batch: list[Scheduled] = []
        self._ended: list[Output] = []

    @property
    def num_running(self) -> int:
        """Requests that are computed."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait to be computed, for blocks from elsewhere included."""
        return len(self._requests) - len(self._scheduler.running)

    @property
    def usage(self) -> float:
        """Share of the cache's blocks that requests and leases hold."""
        return self._cache.pool.usage

    @property
    def has_work(self) -> bool:
        """Whether a step could bring something; false also while all wait for loads."""
        queues = self._scheduler
        return bool(self._batch or self._ended or queues.waiting or queues.loaded or queues.running)

    def add_request(self, request_id: str, ask: Ask) -> None:
        """Queue a request.

        Raises:
            ValueError: The id is taken, or the prompt does not fit with one token more.
        """
        if request_id in self._requests:
            raise ValueError(f"request {request_id} is here already")
        if not 0 < len(ask.prompt) < self.settings.max_model_tokens:
            raise ValueError(f"a prompt of {len(ask.prompt)} tokens leaves no room for an answer")
        tokens = list(ask.prompt)
        request = Request(
            request_id, ask, self.settings.block_size, tokens, block_hash=self._block_hash
        )
        request.has_to_load = ask.handoff is not None
        self._requests[request_id] = request
        self._scheduler.waiting.append(request)

    def abort(self, request_id: str) -> Handoff | None:
        """Nobody waits for this request any more; unknown and ended ones are ignored.

        Returns:
            A handoff that will not be read here, to be ended where it comes from.
        """
        request = self._requests.get(request_id)
        if request is None or request.status is Status.FINISHED:
            return None
        unread = request.ask.handoff if request.has_to_load else None
        self._end(request, Finish.ABORT, 0.0)
        return unread

    def reset_prefix_cache(self) -> bool:
        """Forget all content; refused (False) while a block is held."""
        return self._cache.pool.clear()

    def _give(self, scheduled: Scheduled, chosen: Chosen, now: float) -> Output:
        """Give a request the token that the step before computed for it."""
        request, token = scheduled.request, chosen.token_id
        request.tokens.append(token)
        if scheduled.num_preemptions == request.num_preemptions:
            request.num_in_flight -= 1
            self._cache.store(request, request.num_computed - request.num_in_flight)
        self._count_token(request)
        finish, stop_reason = self._finish(request, token)
        cached = None if request.has_reported else request.num_cached
        request.has_reported = True
        handoff = self._end(request, finish, now) if finish else None
        return Output(request.request_id, (token,), finish, cached, stop_reason, handoff, chosen)

    def _count_token(self, request: Request) -> None:
        self.counters.generation_tokens += 1
        if not request.has_reported:
            self.counters.prompt_tokens += request.num_prompt
            self.counters.prompt_tokens_cached += request.num_cached or 0

    def _finish(self, request: Request, token: int) -> tuple[Finish | None, int | None]:
        """Whether and why an answer ends with this token, as vLLM's `check_stop` asks."""
        ask = request.ask
        if request.num_answer >= ask.min_tokens:
            if token == self._eos and not ask.ignore_eos:
                return Finish.STOP, None
            if token in ask.stop_token_ids:
                return Finish.STOP, token
        is_full = len(request.tokens) >= self.settings.max_model_tokens
        if is_full or request.num_answer >= ask.max_tokens:
            return Finish.LENGTH, None
        return None, None

    def _end(self, request: Request, finish: Finish, now: float) -> dict[str, Any] | None:
        """Free or lease a request's blocks; those that are being written wait for the end of it."""
        self._scheduler.remove(request)
        is_written = self._is_written(request)
        request.status = Status.FINISHED
        self.counters.finished[finish] += 1
        if is_written:
            return None
        is_whole = finish in (Finish.STOP, Finish.LENGTH)
        if not (request.ask.hands_off and is_whole and self.settings.has_connector):
            self._free(request)
            return None
        del self._requests[request.request_id]
        return self._hand_off(request, self._cache.forget(request), now)

    @abc.abstractmethod
    def _hand_off(self, request: Request, blocks: list[Block], now: float) -> dict[str, Any]:
        """Hold the blocks of a request that has ended; the answer's `kv_transfer_params`."""

    def _params(self, request: Request, read: list[Block]) -> dict[str, Any]:
        """What others are told of blocks that they may read."""
        return self.origin.params(
            request.request_id,
            [block.block_id for block in read],
            request.num_computed,
            request.num_cached or 0,
        )

    def _is_written(self, request: Request) -> bool:
        """Whether something goes on writing to a request's blocks."""
        return request.status is Status.LOADING

    def _recover(self, request: Request) -> None:
        """A load has failed: compute the prompt here, or give the request up."""
        if self.settings.fails_with_load:
            self._ended.append(Output(request.request_id, finish=Finish.ERROR))
            request.status = Status.LOADED
            self._scheduler.loaded.append(request)
            self._end(request, Finish.ERROR, 0.0)
            return
        self._cache.release(request)
        request.num_computed = 0
        request.status = Status.WAITING
        self._scheduler.waiting.appendleft(request)

    def _free(self, request: Request) -> None:
        del self._requests[request.request_id]
        self._cache.release(request)
