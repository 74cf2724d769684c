"""One thread that waits for sockets, for a deadline, and for what other threads want done.

**Rules**

1. What is registered is touched by this thread alone, after `start`; others `post` what to do.
2. Nothing waits without end: `Turns.tick` comes when `Turns.deadline` is over, and at most
   `RECHECK_S` later.
3. Whatever ends the thread, `Turns.stop` is called at its end, so nobody waits for the dead.

Knows nothing of what the sockets carry.
"""

import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

CLOSE_S: Final = 10.0
"""For the thread to end when it is asked to: it never waits for a peer, but its owner's callbacks
run in it."""

RECHECK_S: Final = 0.05
"""A busy thread looks at its deadlines no more often: each look costs a microsecond a connection,
and no deadline is that sharp."""

_NEVER: Final = float("inf")


class Ready(Protocol):
    """What is registered with a socket."""

    def ready(self, mask: int) -> None:
        """The socket can be read, or written, or both."""


class Turns(Protocol):
    """What the thread does besides."""

    def turn(self) -> None:
        """After all sockets that are ready, once a turn."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    def deadline(self) -> float | None:
        """When the next `tick` is due; None while nothing is waited for."""

    def stop(self) -> None:
        """The thread ends: close all sockets, tell everybody who waits."""


class IoThread:
    """The thread, its selector and the way into it.

    Args:
        name: Of the thread.
        turns: What it does.
    """

    def __init__(self, name: str, turns: Turns) -> None:
        self._turns = turns
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._bell_lock = threading.Lock()
        self._is_closing = False
        self._check_at = _NEVER
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @staticmethod
    def clock() -> float:
        """Seconds of the clock that deadlines are of."""
        return time.monotonic()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_closing(self) -> bool:
        """Whether it ends, or has ended."""
        return self._is_closing

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: There can be no more threads; nothing is left of this one.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._is_closing = True
            self._let_go()
            raise

    def post(self, action: Callable[[], None]) -> bool:
        """Have the thread do something soon, in the order of posting; the last behind `Turns.stop`.

        Returns:
            Whether it will be: not once the thread is being closed.
        """
        with self._bell_lock:
            if self._is_closing:
                return False
            self._posted.append(action)
            os.eventfd_write(self._bell, 1)
        return True

    def wake(self) -> None:
        """Have the thread take a turn, for a deadline that has changed."""
        with self._bell_lock:
            if not self._is_closing:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """End the thread, after what was posted before; wait for it, except from within.

        Raises:
            RuntimeError: It still runs after `CLOSE_S`: what it was given is not given back.
        """
        with self._bell_lock:
            is_first = not self._is_closing
            self._is_closing = True
            if is_first:
                os.eventfd_write(self._bell, 1)
        if not self.is_current:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                raise RuntimeError(
                    f"thread {self._thread.name} has not ended within {CLOSE_S} s: something that "
                    "its owner has it call does not return"
                )

    def watch(self, sock: socket.socket, mask: int, of: Ready) -> None:
        """Tell `of` when the socket is ready as `mask` says; only from the thread, or before it."""
        known = self._selector.get_map().get(sock)
        if known is None:
            self._selector.register(sock, mask, of)
        elif known.events != mask:
            self._selector.modify(sock, mask, of)

    def forget(self, sock: socket.socket) -> None:
        """Close a socket, watched or not."""
        if sock.fileno() >= 0 and sock in self._selector.get_map():
            self._selector.unregister(sock)
        sock.close()

    def _run(self) -> None:
        try:
            while not (self._is_closing and not self._posted):
                self._wait()
        finally:
            with self._bell_lock:
                self._is_closing = True
            self._turns.stop()
            self._act()
            self._let_go()

    def _let_go(self) -> None:
        self._selector.close()
        os.close(self._bell)

    def _wait(self) -> None:
        is_bounded = self._check_at != _NEVER
        timeout = max(0.0, self._check_at - self.clock()) if is_bounded else None
        for key, mask in self._selector.select(timeout):
            if key.data is None:
                os.eventfd_read(self._bell)
            elif self._selector.get_map().get(key.fd) is key:
                key.data.ready(mask)
        self._act()
        self._turns.turn()
        now = self.clock()
        if now < self._check_at:
            self._check_at = min(self._check_at, now + RECHECK_S)
            return
        self._turns.tick(now)
        due = self._turns.deadline()
        self._check_at = _NEVER if due is None else due

    def _act(self) -> None:
        while self._posted:
            self._posted.popleft()()
