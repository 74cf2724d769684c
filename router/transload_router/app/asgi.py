"""The ASGI application: the data path raw, the operators' endpoints in FastAPI."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import perf_counter
from urllib.parse import unquote

from fastapi import FastAPI

from transload_router import __version__
from transload_router.app import models, relay, responses
from transload_router.app.admin import Admin, add_admin_routes
from transload_router.app.answers import error_body, error_headers
from transload_router.app.caches import Caches
from transload_router.app.client import (
    CLIENT_LEFT_STATUS,
    ClientLeft,
    ClientWatch,
    Receive,
    Scope,
    Send,
    drain_body,
    header_list,
    read_body,
    request_target,
)
from transload_router.app.forward import Forward
from transload_router.app.generate import Call
from transload_router.app.headers import REQUEST_ID, find
from transload_router.app.line import CORK
from transload_router.app.operators import add_operators_routes
from transload_router.app.probing import Probing
from transload_router.app.prompts import Prompts
from transload_router.app.relay import CutShort
from transload_router.app.request import GenerateRequest, read_request
from transload_router.app.snapshot import load_snapshot
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import ENDPOINTS, Endpoint
from transload_router.core.bodies.members import read_str
from transload_router.core.types import Dialect, Headers
from transload_router.errors import BadRequest, EngineError, Forbidden, TransloadError
from transload_router.settings import Settings

log = logging.getLogger("transload")

# The router's own; everything else belongs to engines.
OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"})
_ADMIN = "/admin"
_OTHER = "other"


def _is_own(path: str) -> bool:
    return path in OWN_PATHS or _is_admin(path)


def _is_admin(path: str) -> bool:
    return path == _ADMIN or path.startswith(_ADMIN + "/")


class TransloadApp(FastAPI):
    """A FastAPI app whose data path bypasses FastAPI."""

    def __init__(
        self,
        router: Router,
        prompts: Prompts,
        lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    ) -> None:
        super().__init__(title="Transload", version=__version__, lifespan=lifespan, redoc_url=None)
        self.state.router = router
        self._router = router
        self._prompts = prompts
        self._blocked = frozenset(router.settings.blocked_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or _is_own(scope["path"]):
            await super().__call__(scope, receive, send)
            return
        await Serving(self._router, self._prompts, self._blocked, scope, receive, send).serve()


class Serving:
    """One request on the data path: read, served, counted, errors put into words."""

    def __init__(
        self,
        router: Router,
        prompts: Prompts,
        blocked: frozenset[str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._router = router
        self._prompts = prompts
        self._blocked = blocked
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers: Headers = header_list(scope)
        self._path: str = scope["path"]
        # Engines answer a slash too many with a redirect; it means the same.
        row = ENDPOINTS.get(self._path) or ENDPOINTS.get(self._path.removesuffix("/"))
        self._endpoint = row if scope["method"] == "POST" else None
        self._label = row.name if row is not None else _LABELS.get(self._path, _OTHER)
        self._cork = scope.get("extensions", {}).get(CORK, relay.do_nothing)
        self._model: str | None = None

    async def serve(self) -> None:
        """Serve the request to its end."""
        metrics = self._router.metrics
        metrics.in_flight.enter(self._label)
        # What a defect of our own leaves standing: the server answers it with a 500.
        status = 500
        try:
            status = await self._dispatch()
        except ClientLeft:
            status = CLIENT_LEFT_STATUS
        except TransloadError as error:
            status = error.status
            await self._answer(error)
        except CutShort as error:
            # The server closes a connection whose answer was not completed.
            status = error.status
            log.warning("%s answer cut: %s", self._label, error)
        finally:
            metrics.in_flight.leave(self._label)
            model = self._router.model_label(self._model)
            metrics.requests.add(self._label, model, str(status))

    async def _dispatch(self) -> int:
        if self._endpoint is None:
            self._refuse_blocked()
        limit = self._router.settings.max_body_bytes
        body = await read_body(self._headers, self._receive, limit)
        if self._endpoint is not None:
            return await self._generate(self._endpoint, body)
        if self._path.rstrip("/") == models.PATH and self._scope["method"] == "GET":
            return await self._list_models()
        if self._path.startswith(models.PATH + "/") and self._scope["method"] == "GET":
            return await self._show_model(self._path[len(models.PATH) + 1 :])
        return await self._forward(body)

    def _refuse_blocked(self) -> None:
        # As an engine's router would read the path, whatever slashes and escapes are in it.
        parts = [part for part in unquote(self._path).split("/") if part]
        if not {".", ".."}.isdisjoint(parts):
            raise BadRequest("the path has dot segments")
        path = "/" + "/".join(parts)
        if path in self._blocked:
            raise Forbidden(f"{path} is for the engines' operators")
        if _is_admin(path):
            # Spelt otherwise than the router's own: the engines have nothing to do with it.
            raise Forbidden(f"{path} is for the router's operators")

    async def _generate(self, endpoint: Endpoint, body: bytes) -> int:
        target = request_target(self._scope, endpoint.path.encode())
        request = read_request(
            self._router, endpoint, target, self._headers, body, perf_counter(), self._cork
        )
        self._model = request.model
        with ClientWatch(self._receive) as watch:
            try:
                await self._pin(request)
                await self._prompts.read(request)
            except asyncio.CancelledError:
                watch.absorb()
                return CLIENT_LEFT_STATUS
            call = Call(self._router, request, self._send)
            try:
                await call.run(watch)
            finally:
                notes = call.notes
                self._router.metrics.paths.add(endpoint.name, notes.path, notes.reason)
        return call.status

    async def _pin(self, request: GenerateRequest) -> None:
        """A response that goes on from an earlier one goes where that one is."""
        previous = request.members.get("previous_response_id")
        if request.endpoint.dialect is not Dialect.RESPONSES or previous is None:
            return
        response_id = read_str(previous)
        if response_id is not None:
            request.only_decode = await responses.find_owner(
                self._router, response_id, self._headers
            )

    async def _forward(self, body: bytes) -> int:
        router, path = self._router, self._path
        target = request_target(self._scope)
        forward = Forward(router, self._scope["method"], target, self._headers)
        with ClientWatch(self._receive) as watch:
            try:
                only = None
                stored = responses.STORED_PATH.fullmatch(path)
                if stored is not None:
                    only = await responses.find_owner(router, stored.group(1), self._headers)
                try:
                    await forward.run(body, self._send, only=only)
                finally:
                    self._model = forward.model
            except asyncio.CancelledError:
                watch.absorb()
                return CLIENT_LEFT_STATUS
            finally:
                router.metrics.paths.add(self._label, "local", "one_engine")
        return forward.status

    async def _list_models(self) -> int:
        status, body = await models.list_models(self._router, self._headers)
        await relay.send_whole(self._send, status, list(_JSON), body)
        return status

    async def _show_model(self, model_id: str) -> int:
        status, body = await models.list_models(self._router, self._headers)
        if status == 200:
            listed = models.read_models(body)
            if model_id not in listed:
                return await self._forward(b"")
            body = bytes(listed[model_id])
        await relay.send_whole(self._send, status, list(_JSON), body)
        return status

    async def _answer(self, error: TransloadError) -> None:
        """Say what went wrong; nothing was said yet, or it would have been a `CutShort`."""
        if not isinstance(error, EngineError):
            self._router.metrics.errors.add("router", error.kind, "none")
        dialect = _dialect(self._path)
        headers = error_headers(error)
        client_id = find(self._headers, REQUEST_ID)
        if client_id is not None:
            headers.append((REQUEST_ID, client_id))
        body = error_body(error, dialect)
        if error.status == 413:
            await self._refuse_upload(headers, body)
            return
        await relay.send_whole(self._send, error.status, headers, body)

    async def _refuse_upload(self, headers: Headers, body: bytes) -> None:
        """Answer 413 at once, then let the upload run out; only then the connection closes."""
        # What was not read of the body must not be taken for the next request.
        headers.extend(((b"connection", b"close"), (b"content-length", b"%d" % len(body))))
        await self._send({"type": "http.response.start", "status": 413, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await drain_body(self._receive)
        await self._send({"type": "http.response.body", "body": b""})


def _dialect(path: str) -> Dialect:
    """Whose error shapes a path's clients expect, paths below an endpoint included."""
    for row in ENDPOINTS.values():
        if path == row.path or path.startswith(f"{row.path}/"):
            return row.dialect
    return Dialect.OPENAI


_JSON = ((b"content-type", b"application/json"),)
# Routes with a label of their own; the rest is "other", whatever clients ask for.
_LABELS = {
    path: path.removeprefix("/v1").strip("/").replace("/", "_")
    for path in (
        "/v1/models",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/classify",
        "/detokenize",
        "/pooling",
        "/rerank",
        "/score",
        "/tokenize",
    )
}


def create_app(settings: Settings) -> TransloadApp:
    """The service for these settings; probes run while its lifespan is open."""
    router = Router(settings)
    prompts, caches = Prompts(router), Caches(router)
    probing = Probing(router, prompts, caches)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        router.start()
        caches.start()
        if settings.index_snapshot_from is not None:
            await load_snapshot(router)
        probing.start()
        try:
            yield
        finally:
            await probing.stop()
            await caches.stop()
            prompts.close()
            await router.stop()

    app = TransloadApp(router, prompts, lifespan)
    add_operators_routes(app, router, probing)
    add_admin_routes(app, Admin(router, prompts, caches))
    return app
