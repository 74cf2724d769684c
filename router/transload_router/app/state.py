"""What all requests of one router share."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from time import monotonic
from urllib.parse import urlsplit

from transload_router.app.headers import HeaderPolicy
from transload_router.app.metrics import CacheRow, EngineRow, Metrics
from transload_router.app.owners import Owners
from transload_router.core.handoff import HandoffPolicy
from transload_router.core.index.approximate import ApproximateIndex
from transload_router.core.index.index import Index
from transload_router.core.kv_events.messages import SnapshotLoaded, StreamState
from transload_router.core.membership import Fleet, Health
from transload_router.core.policy import Ask, Chance, Destination, FleetView, Weights
from transload_router.core.routing import Choice, Routing
from transload_router.core.types import Address, DestinationKey, Engine, Role
from transload_router.errors import EngineUnreachable
from transload_router.io.upstream import Timeouts, Upstream
from transload_router.settings import Settings

log = logging.getLogger("transload")

# Of an engine without data parallelism.
ONE_RANK = (0,)
# A release takes milliseconds where its engine lives; at the end nothing else is waited for.
STOP_TIMEOUT_S = 2.0


class Router:
    """Tables, clients and policies of one service; `start` before use, `stop` after."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.fleet = Fleet()
        for role, urls in ((Role.PREFILL, settings.prefill), (Role.DECODE, settings.decode)):
            for index, url in enumerate(urls):
                self.fleet.add(Engine(f"{role}-{index}", role, parse_address(url)))
        self.chance: Chance = random.random
        weights = Weights(inter_token_target_s=settings.inter_token_target_s)
        self.routing = Routing(self.chance, settings.policy, weights)
        self.load = self.routing.load
        self.index = Index(settings.index_max_blocks)
        self.texts = ApproximateIndex()
        # How much is known of each cache that is followed; `app/caches` keeps it.
        self.streams: dict[DestinationKey, StreamState] = {}
        self._is_all_followed: bool | None = None
        self.stream_positions: Callable[[], Mapping[DestinationKey, SnapshotLoaded]] = dict
        self.session_header = settings.session_header.lower().encode()
        self._destinations: dict[str, list[Destination]] = {}
        for member in self.fleet.members.values():
            self.set_ranks(member.engine, ONE_RANK)
        self.handoff_policy = HandoffPolicy(
            recompute_missing=settings.on_missing_handoff == "recompute",
            local_when_empty=settings.on_empty_prefill == "local",
            local_when_failed=settings.on_prefill_failure == "local",
        )
        self.headers = HeaderPolicy(settings)
        self.metrics = Metrics(self._engine_rows, self._cache_rows)
        self.owners = Owners()
        self.aliases = settings.aliases()
        self.upstream: Upstream
        self.defects: list[str] = []
        # What reads the prompts of each model, in words for an operator; `app/prompts` keeps it.
        self.tokenizers: dict[str, str] = {}
        # Told of engines that requests found gone; `Probing` listens.
        self.on_down: Callable[[str], None] = _nobody_listens
        # Told of engines whose events say that they started over; `Probing` listens.
        self.on_restart: Callable[[str], None] = _nobody_listens
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Bind to the running loop."""
        settings = self.settings
        self.upstream = Upstream(
            Timeouts(
                connect_s=settings.connect_timeout_s,
                header_s=settings.response_header_timeout_s,
                idle_s=settings.idle_timeout_s,
            )
        )

    async def stop(self) -> None:
        """Give releases under way their time, then end background work and all connections."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.upstream.close()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run something that outlives its request; `stop` ends it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self.note_end)

    def note_end(self, task: asyncio.Task[None]) -> None:
        """Done callback of background tasks: one that dies of a defect makes `/healthz` fail."""
        if task.cancelled() or task.exception() is None:
            return
        self.defects.append(repr(task.exception()))
        log.critical("a background task died", exc_info=task.exception())

    @property
    def num_background_tasks(self) -> int:
        """Releases and probes under way."""
        return len(self._tasks)

    def choose(self, ask: Ask, avoid: frozenset[str], only: str | None = None) -> Choice | None:
        """Choose and reserve for a request; None where nobody can write its answer.

        Args:
            ask: The request.
            avoid: Engines that failed it.
            only: The one engine that may write its answer, where there is but one.
        """
        return self.routing.choose(ask, self.view(ask, avoid, only), monotonic())

    def view(self, ask: Ask, avoid: frozenset[str], only: str | None = None) -> FleetView:
        """Who may take a request's legs now; arguments as for `choose`."""
        decode = self._able(Role.DECODE, ask.model, avoid)
        if only is not None:
            decode = [one for one in decode if one.engine.id == only]
        may_split = ask.may_split and ask.handoff_from is None
        prefill = self._able(Role.PREFILL, ask.model, avoid) if may_split else []
        return FleetView(prefill, decode, self._can_pair)

    def is_followed(self, key: DestinationKey) -> bool:
        """Whether what the index says of a destination's cache is true."""
        return self.streams.get(key) in (StreamState.EXACT, StreamState.DEGRADED)

    def is_all_followed(self) -> bool:
        """Whether that holds of every destination; looked at anew after each change."""
        if self._is_all_followed is None:
            self._is_all_followed = all(
                self.is_followed(destination.key)
                for ranks in self._destinations.values()
                for destination in ranks
            )
        return self._is_all_followed

    def set_stream(self, key: DestinationKey, state: StreamState) -> None:
        """Note how much is known of a cache that is followed."""
        self.streams[key] = state
        self._is_all_followed = None

    def drop_streams(self, engine_id: str) -> None:
        """An engine's caches are followed no longer."""
        for key in [key for key in self.streams if key[0] == engine_id]:
            del self.streams[key]
        self._is_all_followed = None

    def _able(self, role: Role, model: str | None, avoid: frozenset[str]) -> list[Destination]:
        return [
            destination
            for member in self.fleet.candidates(role, model, avoid)
            for destination in self._destinations[member.engine.id]
        ]

    def _can_pair(self, prefill: Destination, decode: Destination) -> bool:
        return self.fleet.is_compatible(prefill.engine.id, decode.engine.id)

    def set_ranks(self, engine: Engine, ranks: Sequence[int]) -> None:
        """Say which data-parallel ranks an engine serves; each is a destination of its own.

        A server of one rank alone, whichever it is, is not asked for it.
        """
        known = self._destinations.get(engine.id, [])
        if [one.rank for one in known] != list(ranks) or known[0].engine is not engine:
            named = [Destination(engine, rank, len(ranks)) for rank in ranks]
            self._destinations[engine.id] = named
            self._is_all_followed = None

    def has_other(self, role: Role, model: str | None, avoid: frozenset[str]) -> bool:
        """Whether an engine would be left after avoiding these."""
        return bool(self.fleet.candidates(role, model, avoid))

    def note_unreachable(self, engine: Engine, error: EngineUnreachable) -> None:
        """A connection failed: where nobody listens, the next probe decides when to choose it."""
        if not error.is_gone:
            return
        if self.fleet.members[engine.id].health is not Health.DOWN:
            log.warning("engine %s is down: %s", engine.id, error)
        self.fleet.mark_down(engine.id, str(error))
        self.on_down(engine.id)

    def served_name(self, alias: str | None) -> str | None:
        """The engines' name for a client's model name; None where it is no alias."""
        if alias is None or alias not in self.aliases:
            return None
        return self.aliases[alias] or self.fleet.only_model()

    def model_label(self, model: str | None) -> str:
        """A bounded label: what engines serve, or "other"."""
        return model if model is not None and self.fleet.is_known_model(model) else "other"

    def _engine_rows(self) -> Iterator[EngineRow]:
        for member in self.fleet.members.values():
            num_requests, num_tokens = self.load.of_engine(member.engine)
            yield (
                member.engine.id,
                member.engine.role.value,
                num_requests,
                num_tokens,
                member.health is not Health.DOWN,
            )

    def _cache_rows(self) -> Iterator[CacheRow]:
        positions = self.stream_positions()
        for key, state in self.streams.items():
            stats, position = self.index.stats(key), positions.get(key)
            sequence = position.seq if position is not None else None
            yield (*key, state.value, sequence, stats.num_blocks if stats is not None else {})


def _nobody_listens(_engine_id: str) -> None:
    """Before probes run."""


def parse_address(url: str) -> Address:
    """An address from a URL that the settings have checked."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return Address(parts.hostname, parts.port, parts.scheme == "https", parts.path)
