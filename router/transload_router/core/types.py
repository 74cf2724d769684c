"""The values that the router's rooms exchange."""

import enum
from dataclasses import dataclass

# Names in lower case, in the order they came; a name may stand more than once.
Headers = list[tuple[bytes, bytes]]
# Engine id and data-parallel rank; rank 0 for engines without ranks.
DestinationKey = tuple[str, int]


class Role(enum.StrEnum):
    """What a pool of engines is for."""

    PREFILL = "prefill"
    DECODE = "decode"


class Dialect(enum.StrEnum):
    """Whose error shapes an endpoint's clients expect."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens.

    Attributes:
        host: Name or address; IPv6 without brackets.
        port: TCP port, 1 to 65535.
        is_tls: Whether to speak TLS.
        base_path: Prefix before every path, without a trailing slash; mostly "".
    """

    host: str
    port: int
    is_tls: bool = False
    base_path: str = ""

    @property
    def authority(self) -> str:
        """`host:port` as it stands in URLs and Host headers, IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def url(self, path: str = "", *, scheme: str | None = None) -> str:
        """The one place that builds URLs of an engine.

        Args:
            path: Absolute path, "" for none.
            scheme: Instead of http or https, such as "tcp".
        """
        return f"{scheme or ('https' if self.is_tls else 'http')}://{self.authority}{self.base_path}{path}"


@dataclass(frozen=True, slots=True)
class Engine:
    """One addressable vLLM server.

    Attributes:
        id: The router's own name for it ("prefill-0"), safe to show to clients.
        generation: Grows when an engine of the same id is replaced, so that what was
            reserved on the old one cannot be released on the new one.
    """

    id: str
    role: Role
    address: Address
    generation: int = 0
