"""Stored responses: they live in the memory of the engine that made them."""

import re
from urllib.parse import quote

from transload_router.app.forward import ask
from transload_router.app.state import Router
from transload_router.core.types import Headers, Role
from transload_router.errors import EngineError

STORED_PATH = re.compile(r"/v1/responses/([^/]+)(?:/.*)?")


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
            status, _ = await ask(router, member.engine, target, headers)
        except EngineError:
            continue
        if status == 200:
            router.owners.remember(response_id, member.engine.id)
            return member.engine.id
    return None
