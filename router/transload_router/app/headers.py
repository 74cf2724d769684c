"""Which headers cross the router, in both directions."""

import uuid
from collections.abc import Iterable

from transload_router.core.types import Role
from transload_router.io.upstream.exchange import Headers
from transload_router.settings import Settings

# RFC 9110, 7.6.1, and what belongs to one connection besides.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Headers by which other proxies and vLLM let a caller choose engines and ranks: only the router
# chooses. X-data-parallel-rank is read by vLLM 0.32 (generate/base/serving.py).
ROUTING = frozenset(
    {
        b"x-data-parallel-host-port",
        b"x-data-parallel-rank",
        b"x-decode-host-port",
        b"x-decoder-host-port",
        b"x-encoder-host-port",
        b"x-encoder-hosts-ports",
        b"x-gateway-destination-endpoint",
        b"x-kv-transfer-params",
        b"x-prefill-host-port",
        b"x-prefiller-host-port",
        b"x-target-host-port",
    }
)
OWN_PREFIX = b"x-transload-"
EXPLAIN = b"x-transload-explain"
REQUEST_ID = b"x-request-id"
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})

_NOT_SENT_ON = HOP_BY_HOP | ROUTING | {b"host", b"content-length", b"expect", REQUEST_ID}
_NOT_GIVEN_BACK = HOP_BY_HOP | {b"content-length", b"date", b"server", REQUEST_ID}


class HeaderPolicy:
    """Turns a client's headers into an engine's, and an answer's into the client's."""

    def __init__(self, settings: Settings) -> None:
        self._credentials = settings.credentials
        self._keys: dict[Role, bytes | None] = {}
        for role, key in (
            (Role.PREFILL, settings.prefill_api_key),
            (Role.DECODE, settings.decode_api_key),
        ):
            self._keys[role] = b"Bearer " + key.get_secret_value().encode() if key else None

    def probe(self, role: Role) -> Headers:
        """Credentials of the router's own questions to a pool."""
        key = self._keys[role]
        return [(b"authorization", key)] if key is not None else []

    def leg(self, role: Role, client: Headers, *, reads_answer: bool) -> Headers:
        """Headers for one leg, with an id of its own.

        Args:
            role: The pool that the leg goes to; each pool has its own key.
            client: The client's headers, names in lower case.
            reads_answer: Whether the router itself reads the answer, which must not be
                compressed then.
        """
        drops = _connection_options(client)
        sent = [
            (name, value)
            for name, value in client
            if name not in _NOT_SENT_ON
            and name not in drops
            and not name.startswith(OWN_PREFIX)
            and not (reads_answer and name == b"accept-encoding")
            and not (self._credentials != "pass" and name in CREDENTIALS)
        ]
        if self._credentials == "replace":
            sent.extend(self.probe(role))
        # Unique per attempt and leg: an engine refuses or confuses two live requests of one id.
        sent.append((REQUEST_ID, uuid.uuid4().hex.encode()))
        return sent

    def answer(self, upstream: Headers, *, keeps_length: bool = False) -> Headers:
        """An engine's answer headers for the client.

        Args:
            upstream: As the engine sent them.
            keeps_length: Whether Content-Length stays true (a body relayed as it is).
        """
        drops = _connection_options(upstream)
        return [
            (name, value)
            for name, value in upstream
            if (name not in _NOT_GIVEN_BACK or (keeps_length and name == b"content-length"))
            and name not in drops
            and not name.startswith(OWN_PREFIX)
        ]


def _connection_options(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Further hop-by-hop headers, as Connection headers name them."""
    options = [value for name, value in headers if name == b"connection"]
    if not options or options in ([b"keep-alive"], [b"close"]):
        return frozenset()
    return frozenset(part.strip().lower() for value in options for part in value.split(b","))


def find(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header, or None."""
    return next((value for key, value in headers if key == name), None)
