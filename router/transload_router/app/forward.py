"""Requests that one engine serves whole: relayed as they are, whatever they are."""

import asyncio
import itertools
import logging
import re
from time import monotonic

from transload_router.app.client import CLIENT_LEFT_STATUS, Send
from transload_router.app.headers import BODY_HEADERS, REQUEST_ID, find
from transload_router.app.relay import CutShort, relay_unread
from transload_router.app.request import clean
from transload_router.app.state import Router
from transload_router.core.bodies.members import (
    NotAnObject,
    is_json,
    read_members,
    write_members,
)
from transload_router.core.policy import Ask
from transload_router.core.routing import Choice
from transload_router.core.types import Engine, Headers
from transload_router.errors import (
    BadRequest,
    EncodedBody,
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    NoEngine,
    TransloadError,
)
from transload_router.io.upstream import Exchange, Sending

log = logging.getLogger("transload")

# Where a multipart form's short fields are looked for, before and after the file.
_MULTIPART_WINDOW_BYTES = 64 << 10
_MULTIPART_MODEL = re.compile(rb'name="?model"?[;\r]')
# Of one part's own headers and of a model's name.
_MULTIPART_FIELD_BYTES = 1 << 10
_MULTIPART_MAX_FIELDS = 8


def _read_multipart_model(body: bytes) -> str | None:
    """The form field "model", if it stands where one would look; work is bounded."""
    window = body[:_MULTIPART_WINDOW_BYTES] + body[-_MULTIPART_WINDOW_BYTES:]
    for match in itertools.islice(_MULTIPART_MODEL.finditer(window), _MULTIPART_MAX_FIELDS):
        part = window[match.end() - 1 : match.end() + 2 * _MULTIPART_FIELD_BYTES]
        _, separator, rest = part.partition(b"\r\n\r\n")
        value, end, _ = rest.partition(b"\r\n")
        if separator and end:
            return value.decode(errors="replace")
    return None


def read_model(router: Router, headers: Headers, body: bytes) -> tuple[str | None, bytes]:
    """The model a request names, and its body less what clients may not set.

    Only JSON objects and multipart forms are looked into; everything else passes unread, but for
    what an engine would read as JSON and the router cannot: other encodings, a byte order mark.

    Raises:
        BadRequest: Such a body.
        EncodedBody: A compressed body that would be read as JSON.
    """
    kind = (find(headers, b"content-type") or b"").lower()
    if kind.startswith(b"multipart/"):
        return _read_multipart_model(body), body
    if not body:
        return None, body
    is_read_as_json = not kind or b"json" in kind
    encoding = (find(headers, b"content-encoding") or b"identity").lower()
    if is_read_as_json and encoding != b"identity":
        # Engines ignore the header and read the bytes as they are.
        raise EncodedBody("send the body without Content-Encoding")
    try:
        members = read_members(body)
    except NotAnObject as error:
        if is_read_as_json and not is_json(body):
            raise BadRequest(f"the body cannot be read as JSON in UTF-8: {error}") from None
        return None, body
    try:
        model, cleaned = clean(router, None, members)
    except NotAnObject as error:
        raise BadRequest(str(error)) from None
    return model, body if cleaned is None else write_members(cleaned)


class Forward:
    """One request to one engine.

    Attributes:
        status: What the client got, for the metrics.
        model: What the request names, once read.
    """

    def __init__(self, router: Router, method: str, target: str, headers: Headers) -> None:
        self._router = router
        self._method = method
        self._target = target
        self._headers = headers
        self.status = CLIENT_LEFT_STATUS
        self.model: str | None = None

    async def run(self, body: bytes, send: Send, *, only: str | None = None) -> None:
        """Choose, send, relay. Another engine is tried only if no byte was sent.

        Raises:
            EngineError, NoEngine, BadRequest: Nothing went to the client yet.
            CutShort: The answer broke off.
        """
        model, body = read_model(self._router, self._headers, body)
        self.model = model
        avoid: frozenset[str] = frozenset()
        error: EngineUnreachable | None = None
        while True:
            ask = Ask(
                model=model,
                num_prompt_tokens=max(1, len(body) // 4),
                may_split=False,
                is_exact=False,
            )
            choice = self._router.choose(ask, avoid, only)
            if choice is None:
                raise error or NoEngine("no engine can take the request now")
            engine = choice.decision.decode.engine
            # What it costs is not known: it is no prompt that the engine has to read.
            choice.decode.prefilled(monotonic())
            try:
                return await self._run_on(engine, choice, body, send)
            except EngineUnreachable as unreachable:
                error = unreachable
                self._count(engine, error)
                self._router.note_unreachable(engine, error)
                avoid |= {engine.id}

    async def _run_on(self, engine: Engine, choice: Choice, body: bytes, send: Send) -> None:
        sending = Sending()
        exchange: Exchange | None = None
        try:
            block = self._router.headers.block(self._headers, reads_answer=False)
            headers = self._router.headers.leg(engine.role, block)
            exchange = await self._router.upstream.send(
                engine,
                self._method,
                self._target,
                headers,
                body,
                sending,
                may_resend=self._method in ("GET", "HEAD", "OPTIONS"),
            )
            self.status = exchange.status
            if exchange.status >= 400:
                kind = f"status_{exchange.status}"
                self._router.metrics.errors.add(engine.role.value, kind, engine.id)
            has_body = exchange.status not in (204, 304)
            given = self._router.headers.answer(exchange.headers, keeps_length=has_body)
            client_id = find(self._headers, REQUEST_ID)
            if client_id is not None:
                given.append((REQUEST_ID, client_id))
            await relay_unread(send, exchange, given)
        except CutShort as cut:
            self._count(engine, cut.cause)
            raise
        except EngineUnreachable:
            raise
        except EngineError as error:
            self._count(engine, error)
            raise
        finally:
            choice.release(monotonic())
            if exchange is not None:
                exchange.release()
            elif sending.connection is not None:
                self._router.upstream.drop(sending.connection)

    def _count(self, engine: Engine, error: TransloadError) -> None:
        self._router.metrics.errors.add(engine.role.value, error.kind, engine.id)
        log.warning("%s: %s", self._target.partition("?")[0], error)


async def ask(router: Router, engine: Engine, target: str, headers: Headers) -> tuple[int, bytes]:
    """A GET of the router's own making, with a client's credentials; bounded in time.

    Raises:
        EngineError: No whole answer; counted already.
    """
    block = router.headers.block(headers, reads_answer=True, without=BODY_HEADERS)
    sent = router.headers.leg(engine.role, block)
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            exchange = await router.upstream.send(engine, "GET", target, sent, b"")
            body, is_whole = await exchange.take_all(_MAX_ASKED_BYTES)
    except (EngineError, TimeoutError) as caught:
        error = caught if isinstance(caught, EngineError) else None
        error = error or EngineTimeout(engine.id, "did not answer in time")
        router.metrics.errors.add(engine.role.value, error.kind, engine.id)
        log.warning("cannot ask for %s: %s", target, error)
        raise error from None
    return (exchange.status, body) if is_whole else (502, b"")


# An engine that does not answer a light question in this time is left out of the answer.
_ASK_TIMEOUT_S = 5.0
_MAX_ASKED_BYTES = 16 << 20
