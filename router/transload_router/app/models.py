"""`/v1/models`: what all engines serve, each object as its engine wrote it."""

import asyncio

from transload_router.app.forward import ask
from transload_router.app.state import Router
from transload_router.core.bodies.members import (
    Members,
    Raw,
    encode_value,
    read_items,
    read_object,
    read_str,
    write_members,
)
from transload_router.core.membership import Health, Member
from transload_router.core.types import Headers
from transload_router.errors import EngineError, NoEngine

PATH = "/v1/models"


async def list_models(router: Router, headers: Headers) -> tuple[int, bytes]:
    """The union over all engines, with the client's credentials.

    Returns:
        (status, body); an engine's own error where no engine listed anything.

    Raises:
        NoEngine: None answered.
    """
    members = [m for m in router.fleet.members.values() if m.health is not Health.DOWN]
    answers = await asyncio.gather(*(_ask(router, member, headers) for member in members))
    listed: dict[str, Raw] = {}
    refusal: tuple[int, bytes] | None = None
    for answer in answers:
        if answer is None:
            continue
        if answer[0] != 200:
            refusal = refusal or answer
            continue
        for model_id, raw in read_models(answer[1]).items():
            listed.setdefault(model_id, raw)
    if not listed and refusal is not None:
        return refusal
    if not listed:
        raise NoEngine("no engine listed its models")
    _add_aliases(router, listed)
    data = Raw(b"[" + b",".join(bytes(raw) for raw in listed.values()) + b"]")
    return 200, write_members({"object": encode_value("list"), "data": data})


async def _ask(router: Router, member: Member, headers: Headers) -> tuple[int, bytes] | None:
    try:
        return await ask(router, member.engine, PATH, headers)
    except EngineError:
        return None


def read_models(body: bytes) -> dict[str, Raw]:
    """Model objects by id, as raw JSON, from an engine's list."""
    top = read_object(Raw(body)) or {}
    found: dict[str, Raw] = {}
    for item in read_items(top.get("data", Raw(b"[]"))) or ():
        fields: Members = read_object(item) or {}
        model_id = read_str(fields.get("id"))
        if model_id is not None:
            found[model_id] = item
    return found


def _add_aliases(router: Router, listed: dict[str, Raw]) -> None:
    for alias in router.aliases:
        served = router.aliases[alias] or (next(iter(listed)) if len(listed) == 1 else None)
        fields = read_object(listed.get(served)) if served is not None else None
        if fields is not None and alias not in listed:
            listed[alias] = Raw(write_members({**fields, "id": encode_value(alias)}))
