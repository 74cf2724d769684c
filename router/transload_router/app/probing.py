"""Rounds of probes: who is up, who serves what. Handoffs are `handoff_probe`'s.

Probes change health and knowledge, never load: reservations belong to requests.
"""

import asyncio
import contextlib
import logging

from transload_router.app.caches import Caches
from transload_router.app.handoff_probe import HandoffProbe
from transload_router.app.prompts import Prompts
from transload_router.app.state import Router
from transload_router.core.membership import Health, Member
from transload_router.core.types import Engine
from transload_router.errors import EngineError, EngineTimeout
from transload_router.io.probe import Listing, Prober

log = logging.getLogger("transload")

# A light route on a busy engine; longer than one decode step of a large batch.
PROBE_TIMEOUT_S = 5.0
# Probes in a row that must time out before an engine is down: a stalled API server may still
# decode. Refused connections and wrong answers count at once.
MAX_TIMEOUTS = 2
# An engine that is down is asked this often, so that it is back soon.
DOWN_INTERVAL_S = 1.0


class Probing:
    """Background tasks: one per engine for its health, and one for handoffs.

    Attributes:
        has_looked: Whether every engine was asked once, and the handoffs of those that were up.
    """

    def __init__(self, router: Router, prompts: Prompts, caches: Caches) -> None:
        self._router = router
        self._prompts = prompts
        self._caches = caches
        self._prober: Prober
        self._handoffs: HandoffProbe
        self._tasks: list[asyncio.Task[None]] = []
        self._num_unasked = 0
        self._num_timeouts: dict[str, int] = {}
        self._complaints: dict[tuple[str, str], str] = {}
        self._went_down: dict[str, asyncio.Event] = {}
        self._has_news = asyncio.Event()
        self.has_looked = False

    def start(self) -> None:
        """Begin probing on the running loop."""
        self._prober = Prober(PROBE_TIMEOUT_S)
        self._handoffs = HandoffProbe(self._router, self._prober, self._headers)
        self._router.on_down = self._note_down
        self._router.on_restart = self._prompts.note_return
        members = list(self._router.fleet.members.values())
        self._num_unasked = len(members)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch(member)) for member in members]
        self._tasks.append(loop.create_task(self._look_at_handoffs()))
        for task in self._tasks:
            task.add_done_callback(self._router.note_end)

    async def stop(self) -> None:
        """End all probes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._prober.close()

    def _headers(self, engine: Engine) -> dict[str, str]:
        credentials = self._router.headers.probe(engine.role)
        return {name.decode(): value.decode() for name, value in credentials}

    async def _watch(self, member: Member) -> None:
        """Ask one engine for as long as the router runs."""
        await self._ask(member)
        self._num_unasked -= 1
        if self._num_unasked == 0:
            self._has_news.set()
            # Whoever comes up later may be a new process; nobody looks at that old an index.
            self._router.index.forget_snapshot()
        interval = self._router.settings.health_interval_s
        down_interval = min(interval, DOWN_INTERVAL_S)
        went_down = self._went_down.setdefault(member.engine.id, asyncio.Event())
        while True:
            if member.health is Health.DOWN:
                await asyncio.sleep(down_interval)
            else:
                # Requests may find it down before the next probe is due.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(interval):
                        await went_down.wait()
                        await asyncio.sleep(down_interval)
            went_down.clear()
            await self._ask(member)

    def _note_down(self, engine_id: str) -> None:
        """A request found the engine gone."""
        self._handoffs.forget(engine_id)
        if engine_id in self._went_down:
            self._went_down[engine_id].set()

    async def _ask(self, member: Member) -> None:
        engine, fleet = member.engine, self._router.fleet
        try:
            await self._prober.check_health(engine, self._headers(engine))
            listing = await self._prober.list_models(engine, self._headers(engine))
        except EngineError as error:
            self._note_failure(member, error)
            return
        self._num_timeouts.pop(engine.id, None)
        if member.health is Health.DOWN:
            self._caches.note_return(engine.id)
            self._prompts.note_return(engine.id)
        if member.health is not Health.UP:
            served = ", ".join(sorted(listing.bases)) if listing else "models unknown"
            log.info("engine %s is up (%s)", engine.id, served)
            if self._num_unasked == 0:
                self._has_news.set()
        fleet.mark_up(engine.id, listing.bases if listing else None)
        await self._get_to_know(member, listing)

    async def _get_to_know(self, member: Member, listing: Listing | None) -> None:
        """Where it publishes what it holds, and whose tokens its prompts are."""
        for learn in (self._follow, self._meet):
            key = (member.engine.id, learn.__name__)
            try:
                await learn(member, listing)
                self._complaints.pop(key, None)
            except EngineError as error:
                # What is known of it stays; the next probe asks again, and logs what is new.
                if self._complaints.get(key) != str(error):
                    log.warning("engine %s is not known well: %s", member.engine.id, error)
                self._complaints[key] = str(error)

    async def _follow(self, member: Member, _listing: Listing | None) -> None:
        engine, sources = member.engine, None
        if self._caches.wants_sources(engine.id):
            sources = await self._prober.find_sources(engine, self._headers(engine))
        self._caches.follow(member, sources)

    async def _meet(self, member: Member, listing: Listing | None) -> None:
        engine = member.engine
        if listing is not None:
            headers = self._headers(engine)
            await self._prompts.meet(engine, listing.roots, self._prober, headers)

    def _note_failure(self, member: Member, error: EngineError) -> None:
        engine_id = member.engine.id
        if isinstance(error, EngineTimeout):
            self._num_timeouts[engine_id] = self._num_timeouts.get(engine_id, 0) + 1
            if member.health is Health.UP and self._num_timeouts[engine_id] < MAX_TIMEOUTS:
                log.warning("engine %s is slow to answer probes", engine_id)
                return
        if member.health is not Health.DOWN:
            log.warning("engine %s is down: %s", engine_id, error)
        self._router.fleet.mark_down(engine_id, str(error))
        self._handoffs.forget(engine_id)

    async def _look_at_handoffs(self) -> None:
        """Look at handoffs of engines as they come up."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            settings = self._router.settings
            if settings.handoff_probe and settings.prefill:
                await self._handoffs.look()
            self.has_looked = True
