"""Runs the router as its users do, by its command line, and ends it with this process."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from real_engine.launch import HOST, POLL_S, STOP_GRACE_S, EngineFailedError, free_ports

READY_S = 90.0
"""Start-up takes 1-3 s; the probe of a first transfer may take longer on a busy machine."""

_PR_SET_PDEATHSIG = 1


class RouterProcess:
    """One ``transload serve``; a context manager."""

    def __init__(
        self,
        prefill: Sequence[str],
        decode: Sequence[str],
        log: Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it at once in front of these engines' URLs.

        Args:
            prefill: URLs of prefill engines.
            decode: URLs of decode engines.
            log: Where its output goes.
            options: Further flags of ``transload serve``.
            env: Further environment variables; they win over this process's own.
        """
        (port,) = free_ports(1)
        self.url = f"http://{HOST}:{port}"
        self.log = log
        script = str(Path(sys.executable).parent / "transload")
        command = [script, "serve", "--host", HOST, "--port", str(port), *options]
        for option, urls in (("--prefill", prefill), ("--decode", decode)):
            command += [part for url in urls for part in (option, url)]
        libc = ctypes.CDLL(None)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | (env or {}),
                start_new_session=True,  # Ctrl-C is for the starter, which then stops this in order
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )

    def __enter__(self) -> Self:
        """Nothing more to start."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops it."""
        self.stop()

    def wait_ready(self, timeout_s: float = READY_S) -> dict[str, Any]:
        """Blocks until every engine is up and the start-up probes are over; returns ``/readyz``.

        Raises:
            EngineFailedError: the process ended, or time ran out.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            state = self._readiness()
            if state.get("is_ready") and all(e["health"] == "up" for e in state["engines"]):
                return state
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_S)
                raise EngineFailedError(f"the router ended:\n{self.log.read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise EngineFailedError(f"not ready after {timeout_s:.0f} s: {state}")

    def stop(self) -> None:
        """Ends it; blocks until it is gone. Safe to call twice."""
        self.process.terminate()
        try:
            self.process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _readiness(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (OSError, urllib.error.URLError, ValueError):
            return {}
