"""Rounds of probes: who is up, who serves what, and, once, who hands off.

Probes change health and knowledge, never load: reservations belong to requests.
"""

import asyncio
import logging
import random

from transload_router.app.state import Router
from transload_router.core.membership import Health, Member, Verdict
from transload_router.core.types import Engine, Role
from transload_router.errors import EngineError
from transload_router.io.probe import Prober

log = logging.getLogger("transload")

# A light route on a busy engine; longer than one decode step of a large batch.
PROBE_TIMEOUT_S = 5.0
# An engine that is down is asked at least this often, so that it is back soon.
DOWN_INTERVAL_S = 1.0
# One whole block of every block size in use, and below the smallest context (engines need it
# for nothing else). Small ids exist in every vocabulary.
_PROBE_PROMPT_TOKENS = 16
_MAX_PROBE_TOKEN = 200
# How long prefill may take to free what was released. It frees within one engine step; a busy
# engine steps in well under a second.
_RELEASE_EFFECT_S = 3.0
_RELEASE_POLL_S = 0.1


class Probing:
    """Background tasks: one per engine for its health, and one for handoffs.

    Attributes:
        has_looked: Whether every engine was asked once, and the handoffs of those that were up.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._prober: Prober
        self._tasks: list[asyncio.Task[None]] = []
        self._num_unasked = 0
        self._has_news = asyncio.Event()
        # Engines whose handoff was looked at since they came up.
        self._looked_at: set[str] = set()
        self.has_looked = False

    def start(self) -> None:
        """Begin probing on the running loop."""
        self._prober = Prober(PROBE_TIMEOUT_S)
        members = list(self._router.fleet.members.values())
        self._num_unasked = len(members)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch(member)) for member in members]
        self._tasks.append(loop.create_task(self._look_at_handoffs()))

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
        interval = self._router.settings.health_interval_s
        while True:
            is_down = member.health is Health.DOWN
            await asyncio.sleep(min(interval, DOWN_INTERVAL_S) if is_down else interval)
            await self._ask(member)

    async def _ask(self, member: Member) -> None:
        engine, fleet = member.engine, self._router.fleet
        try:
            await self._prober.check_health(engine, self._headers(engine))
            models = await self._prober.list_models(engine, self._headers(engine))
        except EngineError as error:
            if member.health is not Health.DOWN:
                log.warning("engine %s is down: %s", engine.id, error)
            fleet.mark_down(engine.id, str(error))
            self._looked_at.discard(engine.id)
            return
        if member.health is not Health.UP:
            served = ", ".join(sorted(models)) if models else "models unknown"
            log.info("engine %s is up (%s)", engine.id, served)
            if self.has_looked:
                self._has_news.set()
        fleet.mark_up(engine.id, models)

    async def _look_at_handoffs(self) -> None:
        """Send one short prompt through each engine's handoff with one partner, as they come up."""
        settings = self._router.settings
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            if settings.handoff_probe and settings.prefill:
                try:
                    async with asyncio.timeout(settings.handoff_probe_timeout_s):
                        await self._probe_handoffs()
                except TimeoutError:
                    log.warning("handoff probe: no end in %s s", settings.handoff_probe_timeout_s)
            self.has_looked = True

    async def _probe_handoffs(self) -> None:
        """Pair every engine that was not looked at with one that is up."""
        fleet = self._router.fleet
        prefills = [m for m in fleet.of_role(Role.PREFILL) if m.health is Health.UP]
        decodes = [m for m in fleet.of_role(Role.DECODE) if m.health is Health.UP]
        if not prefills or not decodes:
            return
        for index in range(max(len(prefills), len(decodes))):
            prefill = prefills[index % len(prefills)]
            decode = decodes[index % len(decodes)]
            pair = {prefill.engine.id, decode.engine.id}
            if pair <= self._looked_at:
                continue
            self._looked_at |= pair
            try:
                await self._probe_pair(prefill, decode)
            except EngineError as error:
                fleet.judge_pair(prefill.engine.id, decode.engine.id, Verdict.FAILS)
                log.warning("handoff probe: %s", error)

    async def _probe_pair(self, prefill: Member, decode: Member) -> None:
        shared = sorted((prefill.models or frozenset()) & (decode.models or frozenset()))
        if not shared:
            log.warning(
                "handoff probe: %s and %s serve no model in common",
                prefill.engine.id,
                decode.engine.id,
            )
            return
        await self._probe_transfer(prefill.engine, decode.engine, shared[0])
        if self._router.fleet.release(decode.engine.id) is Verdict.UNKNOWN:
            await self._probe_release(prefill.engine, decode.engine, shared[0])

    async def _probe_transfer(self, prefill: Engine, decode: Engine, model: str) -> None:
        router, timeout_s = self._router, self._router.settings.handoff_probe_timeout_s
        prompt = _fresh_prompt()
        before = await self._prober.read_gauges(decode, self._headers(decode))
        handoff = await self._prober.ask_handoff(
            prefill, self._headers(prefill), model, prompt, timeout_s
        )
        if handoff is None:
            router.fleet.judge_pair(prefill.id, decode.id, Verdict.MISSING)
            log.warning("engine %s answers prefill legs without a handoff", prefill.id)
            return
        status = await self._prober.take_handoff(
            decode, self._headers(decode), model, prompt, handoff, timeout_s
        )
        after = await self._prober.read_gauges(decode, self._headers(decode))
        verdict = Verdict.WORKS if status == 200 else Verdict.FAILS
        if verdict is Verdict.WORKS and before.num_loaded_tokens is not None:
            loaded = (after.num_loaded_tokens or 0.0) - before.num_loaded_tokens
            verdict = Verdict.WORKS if loaded > 0 else Verdict.MISSING
        router.fleet.judge_pair(prefill.id, decode.id, verdict)
        log.info("handoff %s -> %s: %s", prefill.id, decode.id, verdict.value)

    async def _probe_release(self, prefill: Engine, decode: Engine, model: str) -> None:
        """Release an unused handoff and see whether prefill's blocks come back."""
        timeout_s = self._router.settings.handoff_probe_timeout_s
        headers = self._headers(prefill)
        idle = await self._prober.read_gauges(prefill, headers)
        handoff = await self._prober.ask_handoff(
            prefill, headers, model, _fresh_prompt(), timeout_s
        )
        if handoff is None:
            return
        held = await self._prober.read_gauges(prefill, headers)
        status = await self._prober.release(decode, self._headers(decode), model, handoff)
        verdict = Verdict.MISSING
        if status in (400, 404):
            verdict = await self._await_effect(prefill, idle.kv_usage, held.kv_usage)
        self._router.fleet.judge_release(decode.id, verdict)
        log.info("release through %s: %s", decode.id, verdict.value)

    async def _await_effect(
        self, prefill: Engine, idle: float | None, held: float | None
    ) -> Verdict:
        """Whether usage falls back; UNKNOWN where other traffic or no gauge hides it."""
        if idle is None or held is None or held <= idle:
            return Verdict.UNKNOWN
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RELEASE_EFFECT_S
        while loop.time() < deadline:
            gauges = await self._prober.read_gauges(prefill, self._headers(prefill))
            if gauges.kv_usage is not None and gauges.kv_usage <= idle:
                return Verdict.WORKS
            await asyncio.sleep(_RELEASE_POLL_S)
        return Verdict.MISSING


def _fresh_prompt() -> list[int]:
    """Ids that no engine has cached."""
    return [random.randrange(1, _MAX_PROBE_TOKEN) for _ in range(_PROBE_PROMPT_TOKENS)]
