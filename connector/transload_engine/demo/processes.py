"""Processes that the demonstration starts, hears and ends; what they said last is kept.

Knows nothing of engines and routers.
"""

import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

END_S: Final = 10.0
"""From SIGTERM to SIGKILL; engines and routers took under 1 s to end (2 shared cores, 2026-11)."""

MAX_LINES: Final = 200
"""Kept of what a process says, whether anybody looks for something in it or not."""

SHOWN_LINES: Final = 12
"""Of those when it fails: half of a terminal of 24 lines, with the end of a traceback."""


class ProcessFailed(RuntimeError):
    """A process ended, or did not say in time what it was to say; the text has its last lines."""


class Process:
    """A module of Python in a process of its own; a context manager that ends it.

    Args:
        name: For people.
        module: To run.
        arguments: Of its command line.
        environment: More variables, which win over this process's own.
        ending: Set when it has ended, whyever.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        ending: threading.Event,
    ) -> None:
        self.name = name
        self._ending = ending
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._has_ended = False
        self._heard = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "transload_engine.demo.child", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            text=True,
            errors="replace",
            # Ctrl-C is for the starter, which then ends this in order.
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until it has ended, after having told it so."""
        self.tell_end()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()

    @property
    def has_ended(self) -> bool:
        """Whether it has closed what it speaks through."""
        with self._heard:
            return self._has_ended

    def tell_end(self) -> None:
        """Tell it to end, and do not wait."""
        self._process.terminate()

    def wait_line(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Wait for a line in which a pattern is found.

        Raises:
            ProcessFailed: It ended first, or said no such thing in time.
        """
        found: re.Match[str] | None = None

        def is_over() -> bool:
            nonlocal found
            found = next(filter(None, (re.search(pattern, line) for line in self._lines)), None)
            return found is not None or self._has_ended

        with self._heard:
            self._heard.wait_for(is_over, timeout_s)
        if found is None:
            raise self.failure(f"said nothing of {pattern!r} within {timeout_s:.0f} s")
        return found

    def failure(self, why: str) -> ProcessFailed:
        """What to raise: why, or that it ended where it did, and what it said last."""
        if self.has_ended:
            why = f"ended with status {self._process.wait()}"
        with self._heard:
            shown = list(self._lines)[-SHOWN_LINES:]
        told = "\n".join(f"    {line}" for line in shown) or "    nothing"
        return ProcessFailed(f"{self.name} {why}; it said last:\n{told}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                with self._heard:
                    self._lines.append(line.rstrip("\n"))
                    self._heard.notify_all()
        with self._heard:
            self._has_ended = True
            self._heard.notify_all()
        self._ending.set()
