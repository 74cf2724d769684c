"""A reference engine in a process of its own, to be stopped and killed."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx

from support.reference_engines import MODEL, Asked

ENGINE = (sys.executable, "-m", "transload_engine", "--served-model-name", MODEL, "--port", "0")


class EngineProcess:
    """One that has been started; several start at the same time.

    Args:
        folder: Of a model.
        *arguments: Of the command line.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [*ENGINE, "--model", str(folder), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._url = ""

    @property
    def url(self) -> str:
        """Waits until it serves."""
        if not self._url:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            assert line, "the engine has ended before it served"
            self._url = json.loads(line)["url"]
        return self._url

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[Asked]:
        """Somebody who asks it."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=30) as client:
            yield Asked(self.url, client)

    def stop(self) -> None:
        """It stands still."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It goes on where it stood."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """It is gone when this returns."""
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        """Kill it, and close its pipe."""
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def engine_processes(*several: tuple[Path, tuple[str, ...]]) -> Iterator[list[EngineProcess]]:
    """Processes by their folder and arguments; gone at the end."""
    with contextlib.ExitStack() as stack:
        found = []
        for folder, arguments in several:
            process = EngineProcess(folder, *arguments)
            stack.callback(process.close)
            found.append(process)
        yield found
