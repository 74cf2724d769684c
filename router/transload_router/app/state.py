"""What all requests of one router share."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from urllib.parse import urlsplit

from transload_router.app.headers import HeaderPolicy
from transload_router.app.metrics import EngineRow, Metrics
from transload_router.app.owners import Owners
from transload_router.core.handoff import HandoffPolicy
from transload_router.core.load import Load
from transload_router.core.membership import Fleet, Health
from transload_router.core.policy import Candidate, LeastReserved, LegRequest, Policy
from transload_router.core.types import Address, Engine, Role
from transload_router.errors import EngineUnreachable
from transload_router.io.upstream import Timeouts, Upstream
from transload_router.settings import Settings

log = logging.getLogger("transload")

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
        self.load = Load()
        self.policy: Policy = LeastReserved(random.random)
        self.handoff_policy = HandoffPolicy(
            recompute_missing=settings.on_missing_handoff == "recompute",
            local_when_empty=settings.on_empty_prefill == "local",
            local_when_failed=settings.on_prefill_failure == "local",
        )
        self.headers = HeaderPolicy(settings)
        self.metrics = Metrics(self._engine_rows)
        self.owners = Owners()
        self.aliases = settings.aliases()
        self.upstream: Upstream
        self.defects: list[str] = []
        # Told of engines that requests found gone; `Probing` listens.
        self.on_down: Callable[[str], None] = _nobody_listens
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

    def choose(
        self, request: LegRequest, avoid: frozenset[str], only: str | None = None
    ) -> Engine | None:
        """Choose an engine for a leg; `only` narrows the choice to one that must be it."""
        members = self.fleet.candidates(request.role, request.model, avoid)
        candidates = [
            Candidate(member.engine, self.load.of(member.engine))
            for member in members
            if only is None or member.engine.id == only
        ]
        return self.policy.choose(request, candidates)

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
            load = self.load.of(member.engine)
            yield (
                member.engine.id,
                member.engine.role.value,
                load.num_requests,
                load.num_tokens,
                member.health is not Health.DOWN,
            )


def _nobody_listens(_engine_id: str) -> None:
    """Before probes run."""


def parse_address(url: str) -> Address:
    """An address from a URL that the settings have checked."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return Address(parts.hostname, parts.port, parts.scheme == "https", parts.path)
