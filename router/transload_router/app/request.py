"""A generation request, read once: what the legs and the choice need of it."""

from collections.abc import Callable
from dataclasses import dataclass

from transload_router.app.headers import EXPLAIN, REQUEST_ID, find
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import (
    Endpoint,
    estimate_tokens,
    local_reason,
    strip_transfer,
)
from transload_router.core.bodies.members import (
    Members,
    NotAnObject,
    encode_value,
    read_members,
    read_str,
    write_members,
)
from transload_router.core.index.approximate import Text
from transload_router.core.prompt import Prompt
from transload_router.core.types import Headers
from transload_router.errors import BadRequest, EncodedBody


@dataclass(slots=True)
class GenerateRequest:
    """One client's request to an endpoint that two engines may share.

    Attributes:
        endpoint: Its row of the table.
        target: Path and query for both legs.
        headers: As the client sent them.
        header_block: The same as they go on to both legs.
        body: For decode: the client's bytes, less what clients may not set.
        members: The body's members.
        model: The served model's name, None where the client gave none.
        local_reason: Why one engine must serve it, or None.
        only_decode: The one engine that can serve it, where earlier turns live there.
        num_prompt_tokens: Exact once `prompt` is known, before that an estimate.
        num_answer_tokens: Estimate.
        is_stream: Whether the answer is to be a stream.
        session: What the client calls its session, or None.
        prompt: Its token ids, where they are known.
        prompt_source: Whence: "client", "router", "engine", or why they are not known.
        takers: Engines that may be given these ids instead of the text.
        text: The same as text, where some engine's cache is known by text alone.
        client_id: The client's X-Request-Id, only ever echoed.
        wants_explanation: Whether the answer's headers tell who did what.
        received: `perf_counter` when the body was whole; loops may tick in milliseconds.
        cork: Makes an answer's head wait for its body, where the server can.
    """

    endpoint: Endpoint
    target: str
    headers: Headers
    header_block: bytes
    body: bytes
    members: Members
    model: str | None
    local_reason: str | None
    only_decode: str | None
    num_prompt_tokens: int
    num_answer_tokens: int
    is_stream: bool
    session: str | None
    client_id: bytes | None
    wants_explanation: bool
    received: float
    cork: Callable[[], None]
    prompt: Prompt | None = None
    prompt_source: str = "unread"
    takers: frozenset[str] = frozenset()
    text: Text | None = None


def clean(
    router: Router, endpoint: Endpoint | None, members: Members
) -> tuple[str | None, Members | None]:
    """Take out what clients may not set, and resolve the model's alias.

    Returns:
        (the served model's name, the members as engines get them or None where they are the
        client's own).

    Raises:
        NotAnObject: What would have to be looked into cannot be read.
    """
    cleaned = strip_transfer(endpoint, members)
    model = read_str(members.get("model"))
    served = router.served_name(model)
    if served is None:
        return model, cleaned
    return served, {**(members if cleaned is None else cleaned), "model": encode_value(served)}


def read_request(
    router: Router,
    endpoint: Endpoint,
    target: str,
    headers: Headers,
    body: bytes,
    received: float,
    cork: Callable[[], None],
) -> GenerateRequest:
    """Read a body, strip what clients may not set, resolve the model's alias.

    Raises:
        BadRequest: The body is not a JSON object.
        EncodedBody: The body is compressed.
    """
    encoding = find(headers, b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise EncodedBody("send the body without Content-Encoding")
    try:
        members = read_members(body)
        model, cleaned = clean(router, endpoint, members)
        if cleaned is not None:
            members, body = cleaned, write_members(cleaned)
        reason = local_reason(endpoint, members)
        sizes = estimate_tokens(endpoint, members, len(body))
    except NotAnObject as error:
        raise BadRequest(f"the body must be a JSON object: {error}") from None
    return GenerateRequest(
        endpoint=endpoint,
        target=target,
        headers=headers,
        header_block=router.headers.block(headers, reads_answer=True),
        body=body,
        members=members,
        model=model,
        local_reason=reason,
        only_decode=None,
        num_prompt_tokens=sizes[0],
        num_answer_tokens=sizes[1],
        is_stream=bytes(members.get("stream", b"")).strip() == b"true",
        session=_session(headers, router.session_header),
        client_id=find(headers, REQUEST_ID),
        wants_explanation=find(headers, EXPLAIN) == b"1",
        received=received,
        cork=cork,
    )


def _session(headers: Headers, name: bytes) -> str | None:
    value = find(headers, name)
    return value.decode("latin-1") if value else None
