"""A harness that is another process: a request in, an answer out, or a sentence on what it did.

Whatever happens, the process has ended when `HarnessProcess` is left.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Final, Self

from transload_abi.harness.protocol import (
    MAX_LINE_BYTES,
    Answer,
    Fields,
    HarnessFailed,
    read_answer,
    request_line,
)

ANSWER_S: Final = 30.0
"""For one answer, the start of the process included. Plain Python that decodes the largest vector
element by element takes two."""

END_S: Final = 2.0
"""From the end of its input to its own end; then it is killed."""

_CHUNK_BYTES: Final = 1 << 16


class HarnessProcess:
    """A running harness; a context manager.

    Args:
        command: The program and its arguments. What it writes on standard error goes to ours.
        answer_s: How long each answer may take.

    Raises:
        HarnessFailed: It cannot be started.
    """

    def __init__(self, command: Sequence[str], answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._number = 0
        self._held = bytearray()
        self._has_failed = False
        try:
            # A group of its own, so that what it starts ends with it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise HarnessFailed(f"the harness cannot be started: {error}") from error
        self._input, self._output = _pipe(self._process.stdin), _pipe(self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._input.close()
        try:
            if not self._has_failed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_S)
        finally:
            self._end()

    def ask(self, operation: str, fields: Fields) -> Answer:
        """See `protocol.Implementation`."""
        self._number += 1
        due = time.monotonic() + self._answer_s
        try:
            self._write(request_line(self._number, operation, fields), due)
            return read_answer(self._read_line(due), self._number)
        except HarnessFailed as error:
            self._has_failed = True
            raise HarnessFailed(f"the harness, asked to {operation}: {error}") from None

    def _write(self, data: bytes, due: float) -> None:
        left = memoryview(data)
        while left:
            self._wait(self._input, selectors.EVENT_WRITE, due, "the request was not taken")
            try:
                left = left[os.write(self._input.fileno(), left[:_CHUNK_BYTES]) :]
            except BrokenPipeError:
                raise self._gone() from None

    def _read_line(self, due: float) -> bytes:
        seen = 0
        while (end := self._held.find(b"\n", seen)) < 0:
            seen = len(self._held)
            if seen > MAX_LINE_BYTES:
                raise HarnessFailed(f"a line of more than {MAX_LINE_BYTES} bytes")
            self._wait(self._output, selectors.EVENT_READ, due, "no answer")
            data = os.read(self._output.fileno(), _CHUNK_BYTES)
            if not data:
                raise self._gone()
            self._held += data
        line = bytes(self._held[: end + 1])
        del self._held[: end + 1]
        return line

    def _wait(self, pipe: IO[bytes], event: int, due: float, lacking: str) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, event)
            if not selector.select(max(0.0, due - time.monotonic())):
                raise HarnessFailed(f"{lacking} within {self._answer_s:g} s")

    def _gone(self) -> HarnessFailed:
        """It has closed a pipe: as a rule because it has ended."""
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return HarnessFailed("it closed its input or output and goes on")
        if status < 0:
            return HarnessFailed(f"it was ended by signal {-status}")
        return HarnessFailed(f"it ended with status {status}")

    def _end(self) -> None:
        """Nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None
    os.set_blocking(end.fileno(), False)
    return end
