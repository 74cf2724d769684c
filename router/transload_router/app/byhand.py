"""Coroutines run without a task of their own, a step whenever what they wait for is there.

A task per request only to await the client's leaving, or a task woken for every chunk only to
pass it on, costs more than what it does. Fit for coroutines that await asyncio futures and do not
ask for the current task, as an ASGI server's `receive` and `send` do.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_NOT_DRIVEN = object()


class ByHand(Generic[T]):
    """One coroutine under way; `close` ends it early.

    Args:
        coroutine: Fresh, or driven by its owner until it first waited.
        on_end: Called once with its result or its exception.
        waits_for: What it waits for, where its owner has driven it.
    """

    __slots__ = ("_coroutine", "_on_end", "_waits_for")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        on_end: Callable[[T | None, BaseException | None], None],
        waits_for: Any = _NOT_DRIVEN,
    ) -> None:
        self._coroutine: Coroutine[Any, Any, T] | None = coroutine
        self._on_end = on_end
        self._waits_for = waits_for

    def start(self) -> None:
        """Run the coroutine until it waits or ends; call once, when `self` is where it belongs."""
        if self._waits_for is _NOT_DRIVEN:
            self._step()
        else:
            self._follow(self._waits_for)

    def _step(self, _done: object = None) -> None:
        coroutine = self._coroutine
        if coroutine is None:
            return
        try:
            waits_for = coroutine.send(None)
        except StopIteration as end:
            self._end(end.value, None)
        except BaseException as error:
            self._end(None, error)
        else:
            self._follow(waits_for)

    def _follow(self, waits_for: Any) -> None:
        if waits_for is None:
            # A bare yield: the loop is asked for one pass.
            asyncio.get_running_loop().call_soon(self._step)
        else:
            # What a task does with a future that a coroutine yields to it.
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self._step)

    def _end(self, value: T | None, error: BaseException | None) -> None:
        self._coroutine = None
        self._on_end(value, error)

    def close(self) -> None:
        """End the coroutine where it stands; `on_end` is not called."""
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            coroutine.close()
