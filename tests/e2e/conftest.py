"""The loop of the service, and a fleet for tests that need nothing special."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from support.router_server import Fleet, serve_fleet


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on what the service runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """One prefill engine, one decode engine, short timeouts; settled when the test ends."""
    async with serve_fleet() as fleet:
        yield fleet
