"""Errors in the words of the API that the client speaks."""

import json

from transload_router.core.types import Dialect, Headers
from transload_router.errors import TransloadError

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: TransloadError, dialect: Dialect) -> bytes:
    """A whole JSON answer for an error of the router's own."""
    message = str(error)
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return _dump({"type": "error", "error": {"type": kind, "message": message}})
    return _dump({"error": _openai_error(error)})


def _openai_error(error: TransloadError) -> dict[str, object]:
    return {"message": str(error), "type": error.kind, "param": None, "code": error.status}


def error_headers(error: TransloadError, *, was_retried: bool = False) -> Headers:
    """Headers that go with `error_body`.

    Args:
        error: What went wrong.
        was_retried: Whether the router has tried again already; SDKs are then told not to.
    """
    headers: Headers = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if was_retried:
        headers.append((b"x-should-retry", b"false"))
    return headers


def error_event(error: TransloadError, dialect: Dialect, last_sequence_number: int) -> bytes:
    """The event with which a cut stream ends, in its API's own form. No `[DONE]` follows.

    Args:
        error: What went wrong.
        dialect: The API.
        last_sequence_number: Of the Responses API's last event, -1 where there was none.
    """
    if dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: " + error_body(error, dialect) + b"\n\n"
    if dialect is Dialect.RESPONSES:
        data = _dump(
            {
                "type": "error",
                "code": error.kind,
                "message": str(error),
                "param": None,
                "sequence_number": last_sequence_number + 1,
            }
        )
        return b"event: error\ndata: " + data + b"\n\n"
    return b"data: " + error_body(error, dialect) + b"\n\n"


def _dump(value: dict[str, object]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
