"""One short prompt through each engine's handoff, and whether a release frees its blocks."""

import asyncio
import logging
import random
from collections.abc import Callable

from transload_router.app.state import Router
from transload_router.core.membership import Health, Member, Verdict
from transload_router.core.types import Engine, Role
from transload_router.errors import EngineError
from transload_router.io.probe import EngineGauges, Prober

log = logging.getLogger("transload")

# Enough to take a KV block, in any block size, and within every context. Small ids exist in
# every vocabulary.
_PROBE_PROMPT_TOKENS = 16
_MAX_PROBE_TOKEN = 200


class HandoffProbe:
    """Probes pairs of engines, each engine once since it came up, with one partner."""

    def __init__(
        self, router: Router, prober: Prober, headers: Callable[[Engine], dict[str, str]]
    ) -> None:
        self._router = router
        self._prober = prober
        self._headers = headers
        self._looked_at: set[str] = set()

    def forget(self, engine_id: str) -> None:
        """An engine went down: what it can do is open again."""
        self._looked_at.discard(engine_id)
        self._router.fleet.forget_release(engine_id)

    async def look(self) -> None:
        """Probe every engine that is up and was not looked at.

        Pairs without a common engine run at once, each within the time that the settings allow.
        """
        waiting = self._pairs()
        while waiting:
            busy: set[str] = set()
            round_: list[tuple[Member, Member]] = []
            for pair in waiting:
                ids = {member.engine.id for member in pair}
                if not ids & busy:
                    busy |= ids
                    round_.append(pair)
            waiting = [pair for pair in waiting if pair not in round_]
            await asyncio.gather(*(self._probe_in_time(*pair) for pair in round_))

    def _pairs(self) -> list[tuple[Member, Member]]:
        fleet = self._router.fleet
        prefills = [m for m in fleet.of_role(Role.PREFILL) if m.health is Health.UP]
        decodes = [m for m in fleet.of_role(Role.DECODE) if m.health is Health.UP]
        if not prefills or not decodes:
            return []
        pairs = [
            (prefills[index % len(prefills)], decodes[index % len(decodes)])
            for index in range(max(len(prefills), len(decodes)))
        ]
        return [
            (prefill, decode)
            for prefill, decode in pairs
            if not {prefill.engine.id, decode.engine.id} <= self._looked_at
        ]

    async def _probe_in_time(self, prefill: Member, decode: Member) -> None:
        limit_s = self._router.settings.handoff_probe_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._probe_pair(prefill, decode)
        except TimeoutError:
            log.warning(
                "handoff probe %s -> %s: no end in %s s",
                prefill.engine.id,
                decode.engine.id,
                limit_s,
            )
            return
        self._looked_at |= {prefill.engine.id, decode.engine.id}

    async def _probe_pair(self, prefill: Member, decode: Member) -> None:
        p, d = prefill.engine, decode.engine
        shared = sorted((prefill.models or {}).keys() & (decode.models or {}).keys())
        if not shared:
            log.warning("handoff probe: %s and %s serve no model in common", p.id, d.id)
            return
        try:
            verdict = await self._probe_transfer(p, d, shared[0])
        except EngineError as error:
            log.warning("handoff probe: %s", error)
            verdict = Verdict.FAILS
        self._router.fleet.judge_pair(p.id, d.id, verdict)
        log.info("handoff %s -> %s: %s", p.id, d.id, verdict.value)
        if verdict is Verdict.WORKS and self._router.fleet.release(d.id) is Verdict.UNKNOWN:
            try:
                released = await self._probe_release(p, d, shared[0])
            except EngineError as error:
                log.warning("release probe: %s", error)
                return
            self._router.fleet.judge_release(d.id, released)
            log.info("release through %s: %s", d.id, released.value)

    async def _probe_transfer(self, prefill: Engine, decode: Engine, model: str) -> Verdict:
        limit_s = self._router.settings.handoff_probe_timeout_s
        prompt = _fresh_prompt()
        before = await self._fresh_gauges(decode, model)
        handoff = await self._prober.ask_handoff(
            prefill, self._headers(prefill), model, prompt, limit_s
        )
        if handoff is None:
            log.warning("engine %s answers prefill legs without a handoff", prefill.id)
            return Verdict.MISSING
        status = await self._prober.take_handoff(
            decode, self._headers(decode), model, prompt, handoff, limit_s
        )
        if status != 200:
            return Verdict.FAILS
        after = await self._fresh_gauges(decode, model)
        if before.num_loaded_tokens is None or after.num_loaded_tokens is None:
            return Verdict.WORKS
        has_loaded = after.num_loaded_tokens > before.num_loaded_tokens
        return Verdict.WORKS if has_loaded else Verdict.MISSING

    async def _probe_release(self, prefill: Engine, decode: Engine, model: str) -> Verdict:
        """Release an unused handoff and see whether prefill's blocks come back.

        UNKNOWN where other traffic, or the lack of a gauge, hides it.
        """
        limit_s = self._router.settings.handoff_probe_timeout_s
        idle = (await self._fresh_gauges(prefill, model)).kv_usage
        handoff = await self._prober.ask_handoff(
            prefill, self._headers(prefill), model, _fresh_prompt(), limit_s
        )
        if handoff is None:
            return Verdict.UNKNOWN
        held = (await self._fresh_gauges(prefill, model)).kv_usage
        status = await self._prober.release(decode, self._headers(decode), model, handoff)
        if status not in (400, 404):
            return Verdict.MISSING
        after = (await self._fresh_gauges(prefill, model)).kv_usage
        if idle is None or held is None or after is None or held <= idle:
            return Verdict.UNKNOWN
        return Verdict.WORKS if after <= idle else Verdict.MISSING

    async def _fresh_gauges(self, engine: Engine, model: str) -> EngineGauges:
        """Gauges behind a step of the engine: an idle one's are those of its last step."""
        headers = self._headers(engine)
        await self._prober.nudge(engine, headers, model)
        return await self._prober.read_gauges(engine, headers)


def _fresh_prompt() -> list[int]:
    """Ids that no engine has cached."""
    return [random.randrange(1, _MAX_PROBE_TOKEN) for _ in range(_PROBE_PROMPT_TOKENS)]
