"""TCP sockets as both sides want them: not blocking, not delaying, and finding out who is gone.

An address is a host and a port; hosts are names or numbers, of IPv4 and IPv6.
"""

import errno
import socket
from typing import Final

Address = tuple[str, int]
SocketAddress = tuple[int, tuple[str, int] | tuple[str, int, int, int]]
"""A family, and an address of it."""

BACKLOG: Final = 256
"""Of connections that were not accepted yet: as many as one peer may have."""

KEEPALIVE_S: Final = 15
"""Without a segment the kernel asks a peer whether it is there, so often, three times: a host that
lost its power is found out within a minute, and its connections' memory is free."""

MAX_PORT: Final = 65_535

_UNDER_WAY: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; with `::` or an empty host for IPv4 and IPv6.

    Raises:
        OSError: The address is not this host's, or is taken.
    """
    if not host:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    is_six = ":" in host
    family = socket.AF_INET6 if is_six else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    sock = socket.create_server(
        (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both, reuse_port=False
    )
    sock.setblocking(False)
    return sock


def tune(sock: socket.socket) -> None:
    """Set a connection up."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def begin_connect(address: SocketAddress) -> socket.socket:
    """A connection under way; it is there, or has failed, when the socket can be written.

    Raises:
        OSError: It failed at once.
    """
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        tune(sock)
        code = sock.connect_ex(where)
        if code and code not in _UNDER_WAY:
            raise OSError(code, errno.errorcode.get(code, str(code)))
    except OSError:
        sock.close()
        raise
    return sock


def connect_failure(sock: socket.socket) -> str:
    """Why a connection that was under way has failed; empty where it has not."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return errno.errorcode.get(code, str(code)) if code else ""


def resolve(address: Address, *, is_numeric: bool) -> list[SocketAddress]:
    """All addresses of a host.

    Args:
        address: Host and port.
        is_numeric: Take numbers alone, and never block.

    Raises:
        OSError: There are none.
    """
    if not 0 < address[1] <= MAX_PORT:
        raise OSError(errno.EINVAL, "no port")
    flags = socket.AI_NUMERICHOST if is_numeric else 0
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # labels that are empty or too long
        raise OSError(errno.EINVAL, "no host's name") from error
    known: list[SocketAddress] = []
    for family, _, _, _, where in found:
        if family in (socket.AF_INET, socket.AF_INET6):
            known.append((family, where))  # type: ignore[arg-type]
    return known


def name_of(address: Address) -> str:
    """An address for people and errors."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
