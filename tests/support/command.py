"""The router as a process of its own."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator

from support.waiting import soon

START_S = 30.0


class Command:
    """A running `transload`, its standard error read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line_with(self, text: str) -> str:
        assert self.process.stderr is not None
        while True:
            line = (await soon(self.process.stderr.readline(), START_S)).decode()
            assert line, f"ended without {text!r}: {self.lines}"
            self.lines.append(line)
            if text in line:
                return line

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        assert self.process.stderr is not None
        self.lines.append((await soon(self.process.stderr.read(), START_S)).decode())
        return await soon(self.process.wait(), START_S)


@contextlib.asynccontextmanager
async def command(*args: str, **env: str) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "transload_router.cli",
        *args,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **env},
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def address(line: str) -> str:
    return next(word.rstrip(",") for word in line.split() if word.startswith("http://"))
