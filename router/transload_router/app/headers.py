"""Which headers cross the router, in both directions."""

import itertools
import re
import secrets
from collections.abc import Iterable, Iterator

from transload_router.core.types import Headers, Role
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
DATA_PARALLEL_RANK = b"x-data-parallel-rank"
ROUTING = frozenset(
    {
        DATA_PARALLEL_RANK,
        b"x-data-parallel-host-port",
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
# What describes a client's body, and is wrong beside one of the router's own.
BODY_HEADERS = frozenset({b"accept", b"content-encoding", b"content-type"})
CREDENTIALS = frozenset({b"authorization", b"x-api-key"})

_NOT_SENT_ON = HOP_BY_HOP | ROUTING | {b"host", b"content-length", b"expect", REQUEST_ID}
_NOT_GIVEN_BACK = HOP_BY_HOP | {
    b"alt-svc",
    b"content-length",
    b"content-location",
    b"date",
    b"server",
    REQUEST_ID,
}
_RELAYED_DROPS = _NOT_GIVEN_BACK - {b"content-length"}


class HeaderPolicy:
    """Turns a client's headers into an engine's, and an answer's into the client's."""

    def __init__(self, settings: Settings) -> None:
        drops = _NOT_SENT_ON if settings.credentials == "pass" else _NOT_SENT_ON | CREDENTIALS
        self._drops = {False: drops, True: drops | {b"accept-encoding"}}
        self._request_ids = _unique_ids()
        engines = b"|".join(
            re.escape(url.partition("://")[2].encode())
            for url in (*settings.prefill, *settings.decode)
        )
        self._engine_urls = re.compile(
            rb"^(?:https?:)?//(?:%b)(?=[/?#]|$)" % engines, re.IGNORECASE
        )
        self._keys: dict[Role, bytes | None] = {}
        for role, key in (
            (Role.PREFILL, settings.prefill_api_key),
            (Role.DECODE, settings.decode_api_key),
        ):
            self._keys[role] = b"Bearer " + key.get_secret_value().encode() if key else None
        self._credential_lines = {
            role: b"authorization: %b\r\n" % key
            if key is not None and settings.credentials == "replace"
            else b""
            for role, key in self._keys.items()
        }

    def probe(self, role: Role) -> Headers:
        """Credentials of the router's own questions to a pool."""
        key = self._keys[role]
        return [(b"authorization", key)] if key is not None else []

    def probe_block(self, role: Role) -> bytes:
        """The same, ready to be sent."""
        return b"".join([b"%b: %b\r\n" % header for header in self.probe(role)])

    def block(
        self,
        client: Headers,
        *,
        reads_answer: bool,
        without: frozenset[bytes] = frozenset(),
    ) -> bytes:
        """A client's headers as they go on to engines, ready to be sent.

        Args:
            client: The client's headers, names in lower case.
            reads_answer: Whether the router itself reads the answer, which must not be
                compressed then.
            without: Further names to leave out.
        """
        drops = self._drops[reads_answer]
        named = _connection_options(client)
        if named or without:
            drops = drops | named | without
        return b"".join(
            [
                b"%b: %b\r\n" % header
                for header in client
                if header[0] not in drops and not header[0].startswith(OWN_PREFIX)
            ]
        )

    def leg(self, role: Role, block: bytes, rank: int | None = None) -> bytes:
        """One leg's headers: its pool's credentials, and an id of its own.

        The id is unique per attempt and leg: an engine may confuse two live requests of one id.

        Args:
            role: The leg's pool.
            block: The client's headers, from `block`.
            rank: Data-parallel rank that must serve it; None leaves the choice to the engine.
        """
        if rank is not None:
            block = b"%b%b: %d\r\n" % (block, DATA_PARALLEL_RANK, rank)
        credentials = self._credential_lines[role]
        return b"%b%bx-request-id: %b\r\n" % (block, credentials, next(self._request_ids))

    def answer(self, upstream: Headers, *, keeps_length: bool = False) -> Headers:
        """An engine's answer headers for the client.

        Args:
            upstream: As the engine sent them.
            keeps_length: Whether Content-Length stays true (a body relayed as it is).
        """
        drops = _NOT_GIVEN_BACK if not keeps_length else _RELAYED_DROPS
        named = _connection_options(upstream)
        if named:
            drops |= named
        return [
            header if header[0] != b"location" else (b"location", self._without_engine(header[1]))
            for header in upstream
            if header[0] not in drops and not header[0].startswith(OWN_PREFIX)
        ]

    def _without_engine(self, location: bytes) -> bytes:
        """A redirect to an engine's own address, which clients must not see, made relative."""
        return self._engine_urls.sub(b"", location, count=1) or b"/"


def _unique_ids() -> Iterator[bytes]:
    """Ids unique over all routers and restarts: 96 random bits and a count."""
    prefix = secrets.token_hex(12).encode()
    return (b"%b%08x" % (prefix, number) for number in itertools.count())


def _connection_options(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Further hop-by-hop headers, as Connection headers name them."""
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection" and value not in (b"keep-alive", b"close"):
            named |= {part.strip().lower() for part in value.split(b",")}
    return named


def find(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header, or None."""
    for key, value in headers:
        if key == name:
            return value
    return None
