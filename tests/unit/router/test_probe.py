"""The router's own questions to engines, below what they mean."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from transload_router.core.types import Address, Engine, Role
from transload_router.io.probe import MAX_IDLE_S, Prober

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


async def test_rounds_do_not_share_connections_that_engines_may_be_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uvicorn closes idle connections after 5 s, just when the next round is due."""
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        while await reader.readline():
            while await reader.readline() != b"\r\n":
                pass
            writer.write(OK)
        writer.close()

    shift_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + shift_s)
    monkeypatch.setattr("httpcore._async.http11.time", clock)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine = Engine("e", Role.DECODE, Address(*server.sockets[0].getsockname()))
    prober = Prober(5.0)
    try:
        await prober.check_health(engine, {})
        await prober.check_health(engine, {})
        assert num_connections == 1
        shift_s = MAX_IDLE_S + 0.5
        await prober.check_health(engine, {})
        assert num_connections == 2
        assert MAX_IDLE_S < 5.0
    finally:
        await prober.close()
        server.close()
        await server.wait_closed()
