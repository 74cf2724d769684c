"""Stored responses: they live in the memory of the engine that made them."""

import asyncio
import logging
import re
from urllib.parse import quote

from transload_router.app.forward import ask
from transload_router.app.state import Router
from transload_router.core.types import Headers, Role
from transload_router.errors import EngineError, EngineTimeout

log = logging.getLogger("transload")

STORED_PATH = re.compile(r"/v1/responses/([^/]+)(?:/.*)?")
_TIMEOUT_S = 5.0


async def find_owner(router: Router, response_id: str, headers: Headers) -> str | None:
    """The engine that holds a response: remembered, or found by asking each.

    Returns:
        Its id, or None where no engine knows the response.
    """
    remembered = router.owners.find(response_id)
    if remembered is not None:
        return remembered
    target = f"/v1/responses/{quote(response_id, safe='')}"
    for member in router.fleet.candidates(Role.DECODE, None):
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status, _ = await ask(router, member.engine, target, headers)
        except (EngineError, TimeoutError) as error:
            kind = error.kind if isinstance(error, EngineError) else EngineTimeout.kind
            router.metrics.errors.add(Role.DECODE.value, kind, member.engine.id)
            log.warning("cannot ask engine %s for a response: %s", member.engine.id, error)
            continue
        if status == 200:
            router.owners.remember(response_id, member.engine.id)
            return member.engine.id
    return None
