"""Socket options that make the kernel notice dead and stalled peers."""

import socket

# A silent peer is found out in about 15 + 3 * 5 s, idle or not (RFC 9293, 3.8.4).
KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
# An engine's kernel acknowledges within milliseconds; this long without is a dead host.
UNACKNOWLEDGED_S = 30.0


def watch_peer(sock: socket.socket, stall_timeout_s: float) -> None:
    """Let the kernel find dead peers, and peers that do not take what was sent.

    TCP_USER_TIMEOUT also ends a connection whose peer keeps its window at zero.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_timeout_s * 1000))
