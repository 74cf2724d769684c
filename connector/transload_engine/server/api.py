"""The HTTP surface of vLLM 0.32.0, as far as a router or its tests use it, over plain ASGI."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from transload_engine.server.faults import Faults
from transload_engine.server.generation import Generation, Gone
from transload_engine.server.rank import Rank
from transload_engine.server.wants import (
    Body,
    Refusal,
    Want,
    invalid,
    read_body,
    template_values,
    unknown_model,
)

if TYPE_CHECKING:
    from transload_engine.server.engine import Engine, SimulatedEngine

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Route = Callable[["Request"], Awaitable[bytes]]

JSON = b"application/json"
SSE = b"text/event-stream; charset=utf-8"
METRICS = b"text/plain; version=1.0.0; charset=utf-8"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_encode = msgspec.json.Encoder().encode
_REFUSED = Refusal("Engine core is dead", status=503, kind="ServiceUnavailableError")


class Request:
    """One request, its body read."""

    def __init__(self, scope: Scope, receive: Receive, body: bytes) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.query: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive = receive
        self.body = body

    def header(self, name: bytes) -> str | None:
        """A header's value, None where absent."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Api:
    """The ASGI application of one engine."""

    def __init__(self, engine: "Engine[Any]") -> None:
        self._engine = engine
        self._routes: dict[str, tuple[str, Route]] = {
            "/v1/models": ("GET", self._models),
            "/version": ("GET", self._version),
            "/kv_event_sources": ("GET", self._sources),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/reset_prefix_cache": ("POST", self._reset),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        body = await _read(receive)
        if body is None:
            return
        await self._respond(Request(scope, receive, body), send)

    async def _respond(self, request: Request, send: Send) -> None:
        try:
            self._admit(request)
            await self._serve(request, send)
        except Refusal as refusal:
            await _answer(send, refusal.status, _encode(refusal.body))

    def _admit(self, request: Request) -> None:
        """Refuse what cannot be served now, whatever it asks for."""
        if self._engine.refuses:
            raise _REFUSED

    async def _serve(self, request: Request, send: Send) -> None:
        if request.path in (CHAT, COMPLETIONS):
            if request.method == "POST":
                await self._generate(request, send)
            else:
                await _answer(send, 405, b'{"detail":"Method Not Allowed"}')
        elif request.path in ("/health", "/ping"):
            await _answer(send, 200, b"", None)
        elif request.path == "/metrics":
            await _answer(send, 200, self._engine.metrics(), METRICS)
        elif request.path not in self._routes:
            await _answer(send, 404, b'{"detail":"Not Found"}')
        else:
            method, route = self._routes[request.path]
            if request.method == method:
                await _answer(send, 200, await route(request))
            else:
                await _answer(send, 405, b'{"detail":"Method Not Allowed"}')

    async def _generate(self, request: Request, send: Send) -> None:
        body = read_body(request.body)
        rank = self._engine.choose_rank(request.header(b"x-data-parallel-rank"))
        try:
            want = self._engine.read(body, is_chat=request.path == CHAT)
            if rank is None:
                most = self._engine.spec.num_ranks
                asked = request.header(b"x-data-parallel-rank")
                raise Refusal(f"data_parallel_rank {asked} is out of range [0, {most}).")
        except Refusal as refusal:
            if not refusal.is_unread:
                self._engine.give_up(body.get("kv_transfer_params") or {})
            raise
        await self._run(request, send, want, rank)

    async def _run(self, request: Request, send: Send, want: Want, rank: Rank[Any]) -> None:
        generation = Generation(
            want,
            rank,
            self._engine.tokenizer,
            request.header(b"x-request-id"),
            fingerprint=self._engine.identity.fingerprint,
            reports_cached=self._engine.spec.reports_cached,
        )
        watch = asyncio.create_task(_watch(request.receive, generation))
        try:
            if not want.streams:
                await _answer(send, 200, await generation.whole())
                return
            await send(_head(200, SSE))
            async for part in generation.stream():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except Gone:
            return
        finally:
            watch.cancel()
            generation.close()

    async def _models(self, request: Request) -> bytes:
        spec, created = self._engine.spec, int(time.time())
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        card = {
            "id": spec.model,
            "object": "model",
            "created": created,
            "owned_by": self._engine.identity.owner,
            "root": spec.model,
            "parent": None,
            "max_model_len": spec.core.max_model_tokens,
            "permission": [permission],
        }
        return _encode({"object": "list", "data": [card]})

    async def _version(self, request: Request) -> bytes:
        return _encode({"version": self._engine.identity.version})

    async def _sources(self, request: Request) -> bytes:
        return _encode(self._engine.event_sources())

    async def _tokenize(self, request: Request) -> bytes:
        body = self._checked(request)
        tokenizer = self._engine.tokenizer
        if "messages" in body:
            generates = body.get("add_generation_prompt", True)
            try:
                ids = tokenizer.encode_chat(
                    body["messages"],
                    body.get("tools"),
                    add_generation_prompt=generates,
                    values=template_values(body),
                )
            except ValueError as error:
                raise Refusal(str(error)) from error
        elif isinstance(body.get("prompt"), str):
            ids = tokenizer.encode(body["prompt"])
        else:
            raise invalid("missing", "body.prompt", "Field required", body)
        strings = (
            [tokenizer.decode([each]) for each in ids] if body.get("return_token_strs") else None
        )
        return _encode(
            {
                "count": len(ids),
                "max_model_len": self._engine.spec.core.max_model_tokens,
                "tokens": ids,
                "token_strs": strings,
            }
        )

    async def _detokenize(self, request: Request) -> bytes:
        body = self._checked(request)
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
            raise invalid("list_type", "body.tokens", "Input should be a valid list", tokens)
        return _encode({"prompt": self._engine.tokenizer.decode(tokens)})

    def _checked(self, request: Request) -> Body:
        body = read_body(request.body)
        model = body.get("model")
        if model is not None and model != self._engine.spec.model:
            raise unknown_model(str(model), self._engine.spec.model)
        return body

    async def _reset(self, request: Request) -> bytes:
        done = [rank.core.reset_prefix_cache() for rank in self._engine.ranks]
        return _encode({"success": all(done)})


class SimulatedApi(Api):
    """The same for a simulated engine, with its faults and the ways to cause them."""

    def __init__(self, engine: "SimulatedEngine") -> None:
        super().__init__(engine)
        self._simulated = engine
        self._routes |= {
            "/simulate/fault": ("POST", self._fault),
            "/simulate/die": ("POST", self._die),
        }

    async def _respond(self, request: Request, send: Send) -> None:
        if self._simulated.faults.hangs and not _is_control(request):
            await _left(request.receive)
            return
        await super()._respond(request, send)

    def _admit(self, request: Request) -> None:
        if not _is_control(request):
            super()._admit(request)

    async def _fault(self, request: Request) -> bytes:
        try:
            faults = msgspec.json.decode(request.body or b"{}", type=Faults)
        except msgspec.DecodeError as error:
            raise Refusal(str(error)) from error
        self._simulated.set_faults(faults)
        return _encode(faults)

    async def _die(self, request: Request) -> bytes:
        """Be killed behind this answer; `{"for_s": 2}` says after how long to come back, empty."""
        asked = read_body(request.body or b"{}").get("for_s")
        self._simulated.die(None if asked is None else float(asked))
        return b"{}"


def _is_control(request: Request) -> bool:
    return request.path.startswith("/simulate/")


async def _read(receive: Receive) -> bytes | None:
    """A request's body; None if the client left before its end."""
    message = await receive()
    body: bytes = message.get("body", b"")
    while message["type"] == "http.request" and message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body if message["type"] == "http.request" else None


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _watch(receive: Receive, generation: Generation) -> None:
    await _left(receive)
    generation.leave()


def _head(status: int, content_type: bytes | None, length: int | None = None) -> Message:
    headers = [(b"content-type", content_type)] if content_type else []
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _answer(send: Send, status: int, body: bytes, content_type: bytes | None = JSON) -> None:
    await send(_head(status, content_type, len(body)))
    await send({"type": "http.response.body", "body": body})
