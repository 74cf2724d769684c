"""`/admin`: what operators ask and do, and who they are.

Operators show `admin_api_key`, or, where none is set, connect directly from this very host.
"""

import asyncio
import hmac
import logging
from collections.abc import Mapping
from ipaddress import ip_address
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from transload_router.app import relay
from transload_router.app.caches import Caches
from transload_router.app.choosing import make_ask
from transload_router.app.prompts import Prompts
from transload_router.app.request import GenerateRequest, read_request
from transload_router.app.snapshot import export_snapshot
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    GENERATE,
    RESPONSES,
    Endpoint,
)
from transload_router.core.bodies.members import (
    NotAnObject,
    Raw,
    read_members,
    read_object,
    read_str,
)
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.membership import Health
from transload_router.core.types import DestinationKey, Engine
from transload_router.errors import (
    BadRequest,
    BodyTooLarge,
    EngineError,
    Forbidden,
    TransloadError,
)
from transload_router.settings import Settings

log = logging.getLogger("transload")

# A proxy on this host would make everybody local; these are what proxies leave behind.
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
# So would a browser on this host, which sends what any page tells it to, and says whose page.
_FROM_A_PAGE = "origin"


def check_operator(settings: Settings, headers: Mapping[str, str], client_host: str | None) -> None:
    """Let operators pass.

    Args:
        settings: With `admin_api_key` set, only who shows it passes.
        headers: The request's, names in any case.
        client_host: The peer's address, None where the server does not know it.

    Raises:
        Forbidden: Anybody else.
    """
    key = settings.admin_api_key
    if key is not None:
        shown = headers.get("authorization", "").encode()
        if hmac.compare_digest(shown, b"Bearer " + key.get_secret_value().encode()):
            return
        raise Forbidden("/admin needs the operator's key (Authorization: Bearer ...)")
    if client_host is None or any(name in headers for name in _FORWARDED):
        raise Forbidden("/admin through a proxy needs admin_api_key to be set")
    if _FROM_A_PAGE in headers:
        raise Forbidden("/admin from a web page needs admin_api_key to be set")
    # A page whose name was made to resolve to this host sends no Origin with its GETs.
    if not _is_loopback(client_host) or not _names_loopback(headers.get("host")):
        raise Forbidden("/admin from another host needs admin_api_key to be set")


def _names_loopback(host: str | None) -> bool:
    """Whether a Host header, if there is one, is this host's own name for itself."""
    if host is None:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class Admin:
    """What operators may ask and do."""

    def __init__(self, router: Router, prompts: Prompts, caches: Caches) -> None:
        self._router = router
        self._prompts = prompts
        self._caches = caches

    def check(self, request: Request) -> None:
        """Let operators pass.

        Raises:
            Forbidden: Anybody else.
        """
        host = request.client.host if request.client is not None else None
        check_operator(self._router.settings, request.headers, host)

    async def explain(self, request: Request, path: str | None) -> dict[str, Any]:
        """What would be decided for a body, and why; nothing is reserved, no leg is sent.

        Where an engine's tokenizer is used, it is asked for the prompt's ids.

        Raises:
            BadRequest: The body is no request, or for no endpoint that is known.
        """
        body = await read_limited(request, self._router.settings.max_body_bytes)
        endpoint = ENDPOINTS.get(path) if path is not None else _guess_endpoint(body)
        if endpoint is None:
            raise BadRequest(f"path must be one of {', '.join(ENDPOINTS)}")
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        asked = read_request(
            self._router, endpoint, endpoint.path, headers, body, 0.0, relay.do_nothing
        )
        await self._prompts.look(asked)
        may_split = asked.local_reason is None
        ask = make_ask(self._router, asked, may_split=may_split)
        view = self._router.view(ask, frozenset(), self._owner(asked))
        rows = self._router.routing.explain(ask, view, monotonic())
        return {
            "policy": self._router.settings.policy,
            "endpoint": endpoint.name,
            "model": asked.model,
            "prompt": {"source": asked.prompt_source, "num_tokens": asked.num_prompt_tokens},
            "one_engine_because": asked.local_reason,
            "caches": {
                show_place(key): {
                    "num_tokens": hit.num_tokens,
                    "is_predicted": hit.is_predicted,
                    "is_followed": self._router.is_followed(key),
                }
                for key, hit in ask.match.items()
            },
            "candidates": [msgspec.to_builtins(row) for row in rows],
        }

    def _owner(self, asked: GenerateRequest) -> str | None:
        """The one engine that may answer, where earlier turns are known to live there."""
        previous = asked.members.get("previous_response_id")
        if asked.endpoint is not RESPONSES or previous is None:
            return None
        return self._router.owners.find(read_str(previous) or "")

    def index(self) -> dict[str, Any]:
        """What is known of each cache, and how well."""
        index, streams = self._router.index, self._router.streams
        return {
            "num_blocks": index.num_blocks,
            "num_late_events": index.num_late_events,
            "num_text_chunks": self._router.texts.num_chunks,
            "caches": {
                show_place(key): {
                    "stream": streams.get(key, StreamState.COLD).value,
                    **msgspec.to_builtins(index.stats(key)),
                }
                for key in index.owners()
            },
            "first_tokens": msgspec.to_builtins(self._router.routing.accuracy),
        }

    def snapshot(self) -> bytes:
        """The index, for another replica."""
        self._caches.note_positions()
        return export_snapshot(self._router)

    async def reset_caches(self) -> dict[str, bool]:
        """Have all engines forget their cached prefixes; those that did are forgotten here, too.

        An idle engine announces it only with its next step, so this is how to do it without
        sending requests to where their prefix was.

        Returns:
            By engine, whether it did: one that holds blocks for a handoff refuses, and one without
            `VLLM_SERVER_DEV_MODE=1` has no such path.
        """
        engines = [
            member.engine
            for member in self._router.fleet.members.values()
            if member.health is not Health.DOWN
        ]
        results = await asyncio.gather(*(self._reset(engine) for engine in engines))
        return {engine.id: is_reset for engine, is_reset in zip(engines, results, strict=True)}

    async def _reset(self, engine: Engine) -> bool:
        router = self._router
        block = router.headers.probe_block(engine.role)
        try:
            async with asyncio.timeout(_RESET_TIMEOUT_S):
                exchange = await router.upstream.send(engine, "POST", _RESET_PATH, block, b"")
                body, _ = await exchange.take_all(_MAX_RESET_BYTES)
        except (EngineError, TimeoutError) as error:
            log.warning("cache of %s not reset: %s", engine.id, error or "no answer in time")
            return False
        # What vLLM does not tell is believed: blocks forgotten too soon cost no more than a detour.
        fields = read_object(Raw(body or b"{}")) or {}
        is_reset = exchange.status == 200 and bytes(fields.get("success", b"true")) == b"true"
        if is_reset:
            for key in router.index.owners():
                if key[0] == engine.id:
                    router.index.clear(key)
            router.texts.remove_engine(engine.id)
        return is_reset


_RESET_PATH = "/reset_prefix_cache"
_RESET_TIMEOUT_S = 10.0
_MAX_RESET_BYTES = 64 << 10


def show_place(key: DestinationKey) -> str:
    """A destination's name for operators."""
    return f"{key[0]}/{key[1]}"


def _guess_endpoint(body: bytes) -> Endpoint | None:
    """Whose body it is, by the member that holds its prompt."""
    try:
        members = read_members(body)
    except NotAnObject as error:
        raise BadRequest(f"the body must be a JSON object: {error}") from None
    return next((row for name, row in _PROMPTS.items() if name in members), None)


_PROMPTS = {"messages": CHAT, "prompt": COMPLETIONS, "input": RESPONSES, "token_ids": GENERATE}


async def read_limited(request: Request, limit_bytes: int) -> bytes:
    """A request's body.

    Raises:
        BodyTooLarge: It is longer.
    """
    chunks, num_bytes = [], 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > limit_bytes:
            raise BodyTooLarge(f"the body is over {limit_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def add_admin_routes(app: FastAPI, admin: Admin) -> None:
    """Add `/admin`."""

    async def refuse(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, TransloadError)
        return JSONResponse(
            {"error": {"message": str(error), "type": error.kind}}, status_code=error.status
        )

    app.add_exception_handler(TransloadError, refuse)
    routes = APIRouter(prefix="/admin", dependencies=[Depends(admin.check)])

    @routes.post("/explain", summary="What would be decided for this body, and why")
    async def explain(request: Request, path: str | None = None) -> JSONResponse:
        return JSONResponse(await admin.explain(request, path))

    @routes.get("/index", summary="What is known of each engine's cache")
    async def index() -> JSONResponse:
        return JSONResponse(admin.index())

    @routes.get("/index/snapshot", summary="The index, for another replica to start with")
    async def snapshot() -> Response:
        return Response(admin.snapshot(), media_type="application/vnd.msgpack")

    @routes.post("/reset_prefix_cache", summary="Have all engines forget their cached prefixes")
    async def reset_prefix_cache() -> JSONResponse:
        return JSONResponse(await admin.reset_caches())

    app.include_router(routes)
