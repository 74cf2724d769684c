"""An HTTP server for one engine in an event loop that it shares with others."""

import asyncio
import weakref
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_PORT: Final = 65_535
"""Of TCP, whose headers give a port 16 bits. Who listens at 0 is given any that is free."""


class _Connection(HttpToolsProtocol):
    """uvicorn's protocol, and word of its end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()


class HttpServer:
    """Serves one ASGI application on one port.

    Args:
        app: Of ASGI 3; lifespan events are not sent.
    """

    def __init__(self, app: Any) -> None:
        self._config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which 0 leaves to the system."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, host, port, backlog=2048)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _protocol(self) -> _Connection:
        connection = _Connection(
            config=self._config, server_state=self._state, app_state={}, _loop=None
        )
        self._connections.add(connection)
        return connection

    async def stop(self) -> None:
        """Drop the port and every connection at once, as a process that is killed does."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        connections = [each for each in self._connections if not each.lost.is_set()]
        for connection in connections:
            connection.transport.abort()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:
            await connection.lost.wait()
