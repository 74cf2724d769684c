"""The `transload` command: `serve`, `check-config` and `abi`."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from transload_router import __version__
from transload_router.errors import ConfigError
from transload_router.settings import NO_TOKENIZER, Settings, load_settings
from transload_router.usage import USAGE, say

if TYPE_CHECKING:
    import uvicorn

# Load balancers keep idle connections for 60 s; the side that is asked must keep them longer, or
# requests fall on connections that it is just closing.
CLIENT_KEEP_ALIVE_S = 75


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    command, rest = (args[0], args[1:]) if args else ("", [])
    if words := say(command):
        print(words, end="")
        return 0
    if command == "abi":
        from transload_abi.cli import main as run_abi

        return run_abi(rest)
    run = _COMMANDS.get(command)
    if run is None:
        print(USAGE, file=sys.stderr, end="")
        return 2
    try:
        settings = load_settings(rest, prog=f"transload {command}")
        _check_tokenizers(settings)
    except ConfigError as error:
        print(f"transload {command}: settings cannot work:\n{error}", file=sys.stderr)
        return 2
    return run(settings)


def _check_tokenizers(settings: Settings) -> None:
    """Look for the tokenizers that the operator names, before engines tell what to read.

    Raises:
        ConfigError: One is not there.
    """
    from transload_router.io.tokenizer.files import find_folder, read_files

    for folder in settings.tokenizers().values():
        if folder != NO_TOKENIZER:
            read_files(find_folder(folder, os.environ))


def _check_config(settings: Settings) -> int:
    print(settings.model_dump_json(indent=2))
    return 0


def _serve(settings: Settings) -> int:
    import uvicorn
    import uvloop

    from transload_router.io.tcp import watch_peer

    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Below warning, httpx logs each probe.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        sock = _listen(settings)
    except OSError as error:
        print(f"transload serve: cannot listen: {error}", file=sys.stderr)
        return 1
    watch_peer(sock, settings.client_stall_timeout_s)
    _raise_file_limit()
    _announce(settings, sock)
    server = uvicorn.Server(_server_config(settings))
    _end_well_on_signals(server)
    # What is loaded by now lives as long as the process: full collections need not visit it.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve(sockets=[sock]))
    return 0 if server.started else 1


def _server_config(settings: Settings) -> "uvicorn.Config":
    import uvicorn

    from transload_router.app import create_app
    from transload_router.app.line import Line

    return uvicorn.Config(
        create_app(settings),
        loop="uvloop",
        http=Line,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=CLIENT_KEEP_ALIVE_S,
        server_header=False,
    )


def _end_well_on_signals(server: "uvicorn.Server") -> None:
    """Being told to end is no failure: status 0.

    uvicorn drains on SIGTERM and SIGINT and then raises them again, for whoever had them before.
    """

    def end(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _listen(settings: Settings) -> socket.socket:
    """The listening socket; `::` takes IPv4, too.

    Raises:
        OSError: The address is taken or not ours.
    """
    is_v6 = ":" in settings.host
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    return socket.create_server(
        (settings.host, settings.port),
        family=family,
        backlog=2048,
        dualstack_ipv6=is_v6 and settings.host == "::",
    )


def _raise_file_limit() -> None:
    """Each stream holds two sockets; the usual soft limit of 1,024 files ends at 500."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _announce(settings: Settings, sock: socket.socket) -> None:
    log = logging.getLogger("transload")
    host, port = sock.getsockname()[:2]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    mode = "prefill and decode" if settings.prefill else "decode only (no prefill engine named)"
    log.info("transload %s listens on http://%s, %s", __version__, where, mode)
    for role in ("prefill", "decode"):
        for index, url in enumerate(getattr(settings, role)):
            log.info("engine %s-%d is %s", role, index, url)


_COMMANDS: dict[str, Callable[[Settings], int]] = {
    "serve": _serve,
    "check-config": _check_config,
}

if __name__ == "__main__":
    sys.exit(main())
