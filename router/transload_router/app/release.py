"""Giving back blocks that prefill holds for a handoff nobody will use."""

import asyncio
import enum
import logging

from transload_router.app.headers import BODY_HEADERS
from transload_router.app.request import GenerateRequest
from transload_router.app.state import Router
from transload_router.core.bodies.legs import RELEASE_PATH, release_body
from transload_router.core.membership import Health, Verdict
from transload_router.core.types import Engine, Role
from transload_router.errors import EngineError, EngineUnreachable

log = logging.getLogger("transload")

# The engine rejects the request before rendering, within milliseconds; slower is no answer.
RELEASE_TIMEOUT_S = 5.0
# Through another engine only where the first did not see the request at all.
MAX_TRIES = 2


class Outcome(enum.Enum):
    """What became of a release request."""

    TAKEN = "rejected as it should be, and so released"
    NOT_SENT = "the engine did not see it"
    UNKNOWN = "the engine may have seen it"


async def release_handoff(
    router: Router, request: GenerateRequest, handoff: bytes, preferred: str | None
) -> None:
    """Release through a decode engine; what that cannot do is left to the lease, and counted.

    Args:
        router: The router.
        request: Whose handoff it is; its credentials go with the release.
        handoff: Raw `kv_transfer_params`, never presented to any engine.
        preferred: The decode engine to try first.
    """
    released = "lease"
    try:
        for engine in _engines(router, request, preferred)[:MAX_TRIES]:
            outcome = await _send_release(router, request, handoff, engine)
            if outcome is Outcome.TAKEN and router.fleet.release(engine.id) is not Verdict.MISSING:
                released = "request"
            if outcome is not Outcome.NOT_SENT:
                break
    finally:
        router.metrics.released.add(released)
        if released == "lease":
            log.warning("a handoff could not be released; prefill frees its blocks by lease")


def _engines(router: Router, request: GenerateRequest, preferred: str | None) -> list[Engine]:
    members = router.fleet.candidates(Role.DECODE, request.model)
    engines = [member.engine for member in members if member.health is not Health.DOWN]
    return sorted(engines, key=lambda engine: engine.id != preferred)


async def _send_release(
    router: Router, request: GenerateRequest, handoff: bytes, engine: Engine
) -> Outcome:
    model = request.model or router.fleet.only_model() or ""
    block = router.headers.block(request.headers, reads_answer=True, without=BODY_HEADERS)
    headers = router.headers.leg(Role.DECODE, block + b"content-type: application/json\r\n")
    try:
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            exchange = await router.upstream.send(
                engine,
                "POST",
                RELEASE_PATH,
                headers,
                release_body(model, handoff),
                may_resend=False,
            )
            await exchange.take_all(MAX_ANSWER_BYTES)
    except EngineUnreachable as error:
        log.info("release through engine %s failed: %s", engine.id, error)
        return Outcome.NOT_SENT
    except (EngineError, TimeoutError) as error:
        # Sent and unanswered: another could be a second release, which is an alarm.
        log.warning("release through engine %s has no answer: %s", engine.id, error)
        return Outcome.UNKNOWN
    # 400 (beam search does not stream) or 404 (unknown model): rejected, and so released.
    return Outcome.TAKEN if exchange.status in (400, 404) else Outcome.UNKNOWN


MAX_ANSWER_BYTES = 64 << 10
