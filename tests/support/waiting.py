"""Waiting for what other code does, bounded in time, and never for time itself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

# Long enough for a loaded two-core machine, short enough to name the test that hangs.
PATIENCE_S = 10.0
_POLL_S = 0.002


async def soon(awaitable: Awaitable[T], within_s: float = PATIENCE_S) -> T:
    """The result of something that must happen soon.

    Raises:
        TimeoutError: It did not.
    """
    async with asyncio.timeout(within_s):
        return await awaitable


async def until(condition: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Let the loop run until a condition holds; for state that has no event of its own.

    Raises:
        AssertionError: It did not come true in time.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        await asyncio.sleep(_POLL_S)
