"""What can go wrong, who is to blame, what the client is told, and whether a retry is safe.

::

    TransloadError
    ├── ConfigError              the operator: settings that cannot work; raised before serving
    ├── ClientError              the client broke the rule; never retried
    │   ├── BadRequest           400  the body is not a JSON object
    │   ├── Forbidden            403  a path that clients may not reach
    │   ├── RequestTimeout       408  the client stopped in the middle of its body
    │   ├── BodyTooLarge         413  over the configured limit
    │   └── EncodedBody          415  a compressed body where JSON must be read
    ├── NoEngine                 503  the pool is empty or everything in it is down
    ├── MissingHandoff           502  prefill gave no handoff and the operator said `fail`
    └── EngineError              an engine broke the rule
        ├── EngineUnreachable    503  the connection failed before a request byte was sent
        ├── EngineTimeout        504  no header, or no further byte, in the time allowed
        ├── EngineReset          502  the connection ended before the answer did
        └── EngineBadAnswer      502  the bytes are not the protocol's
"""

from typing import ClassVar


class TransloadError(Exception):
    """Root of all errors that the router answers with.

    Attributes:
        status: The HTTP status for the client.
        kind: A stable word for metrics and for `error.type`; one of a fixed set.
        retry_after_s: Seconds for the Retry-After header, or None.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal_error"
    retry_after_s: ClassVar[int | None] = None


class ConfigError(TransloadError):
    """The operator's settings cannot work; the message names the setting."""

    kind = "config_error"


class ClientError(TransloadError):
    """The client's request cannot be served as sent."""

    status = 400
    kind = "invalid_request_error"


class BadRequest(ClientError):
    """The body is not what the endpoint takes."""


class Forbidden(ClientError):
    """The path belongs to the engines' operator."""

    status = 403
    kind = "forbidden"


class RequestTimeout(ClientError):
    """The client stopped in the middle of its body."""

    status = 408
    kind = "request_timeout"


class BodyTooLarge(ClientError):
    """The body is over the configured limit."""

    status = 413
    kind = "request_too_large"


class EncodedBody(ClientError):
    """The body is compressed and this endpoint's JSON must be read."""

    status = 415
    kind = "unsupported_content_encoding"


class NoEngine(TransloadError):
    """No engine of a pool can take the request now."""

    status = 503
    kind = "no_engine_available"
    retry_after_s = 1


class MissingHandoff(TransloadError):
    """Prefill answered without `kv_transfer_params` and the policy is `fail`."""

    status = 502
    kind = "missing_handoff"


class EngineError(TransloadError):
    """An engine or the way to it failed.

    Attributes:
        engine: The engine's id, for logs; never its address.
        was_sent: Whether any byte of the request may have reached the engine. While it is
            False, the same request (and the same handoff) may be presented again.
    """

    status = 502
    kind = "engine_error"

    def __init__(self, engine: str, message: str, *, was_sent: bool = True) -> None:
        super().__init__(f"engine {engine}: {message}")
        self.engine = engine
        self.was_sent = was_sent


class EngineUnreachable(EngineError):
    """No connection: refused, unroutable, or not accepted in the connect timeout.

    Attributes:
        is_gone: Whether nobody listens there. A connect timeout does not say so: a burst that
            fills a busy engine's backlog looks the same.
    """

    status = 503
    kind = "engine_unreachable"
    retry_after_s = 1

    def __init__(self, engine: str, message: str, *, is_gone: bool = True) -> None:
        super().__init__(engine, message, was_sent=False)
        self.is_gone = is_gone


class EngineTimeout(EngineError):
    """The engine was silent longer than the settings allow."""

    status = 504
    kind = "engine_timeout"


class EngineReset(EngineError):
    """The connection ended before the answer was whole."""

    kind = "engine_reset"


class EngineBadAnswer(EngineError):
    """The engine's bytes are not HTTP, not JSON, or too many."""

    kind = "engine_bad_answer"
