"""Options of engines that hand blocks to others and load theirs, called as vLLM calls them."""

import argparse
import os
from typing import Final

from transload_abi.wire.limits import MAX_TERM_MS
from transload_engine.core.settings import CoreSettings
from transload_engine.server.kv_transfer import KvTransport, TransferSettings
from transload_engine.server.listen import MAX_PORT

TOKEN_VARIABLE: Final = "TRANSLOAD_KV_TOKEN"
"""Holds the token where the command line does not; unlike that, others cannot list it."""

POLICIES: Final = ("recompute", "fail")


_TRANSPORT: Final = (
    "auto (default): the cache is in /dev/shm if it fits there, where engines of this host read "
    "each other's, and all else over TCP; shm: nothing is read over TCP; tcp: nothing is in "
    "/dev/shm"
)


def add_kv_options(made: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    add, flag, default = made.add_argument, argparse.BooleanOptionalAction, TransferSettings()
    add("--side-channel-host", default=default.host, help="where other engines read blocks")
    add("--side-channel-port", type=int, default=default.port, help="0: any")
    add("--kv-token", help=f"shared with other engines; default: {TOKEN_VARIABLE} if it is set")
    add("--kv-lease-duration", type=float, default=CoreSettings().lease_s, help="seconds")
    add("--kv-load-failure-policy", choices=POLICIES, default=POLICIES[0])
    transports = [str(each) for each in KvTransport]
    add("--kv-transport", choices=transports, default=str(default.transport), help=_TRANSPORT)
    add("--kv-allow-lossy", action=flag, default=False, help="whether loads may round numbers")


def transfer_settings(given: argparse.Namespace) -> TransferSettings:
    """What the command line says of transfers.

    Raises:
        ValueError: A port is none, or a lease no time.
    """
    port, lease_s = given.side_channel_port, given.kv_lease_duration
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"--side-channel-port: at most {MAX_PORT}, and 0 is any; got {port}")
    longest_s = MAX_TERM_MS // 1000
    if not 0 < lease_s <= longest_s:
        raise ValueError(
            f"--kv-lease-duration: more than 0 and at most {longest_s} seconds; got {lease_s}"
        )
    token = given.kv_token or os.environ.get(TOKEN_VARIABLE)
    return TransferSettings(
        host=given.side_channel_host,
        port=port,
        token=token.encode() if token else None,
        lease_s=lease_s,
        allows_lossy=given.kv_allow_lossy,
        transport=KvTransport(given.kv_transport),
    )
