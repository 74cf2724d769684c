"""Starts and stops real engines from outside their environment: processes, ports, health, metrics.

Imports no vLLM: it runs in the router's environment and talks to `real_engine.zygote` by a socket.

**Rules**

* Whatever is started ends with the object that started it, and at the latest with this process:
  the zygote watches a pipe, and the kernel kills its forks with it.
* An engine is usable when `Engine.wait_ready` returns; before that only `stop` is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from real_engine.spec import HOST, MODEL_NAME, EngineSpec, Ports, Role, free_ports, ports_for

__all__ = [
    "HOST",
    "MODEL_NAME",
    "Engine",
    "EngineFailedError",
    "EngineSpec",
    "Engines",
    "Ports",
    "Role",
    "ensure_model",
    "free_ports",
    "scrape",
]

ZYGOTE_START_S = 300.0
"""Importing vLLM took 17-37 s on 2 shared cores; a cold disk and load 30 took it past 100 s."""

ENGINE_START_S = 240.0
"""A forked engine took 5-25 s on 2 shared cores with three starting at once."""

STOP_GRACE_S = 10.0
"""After this long a stopping engine is killed; one that still starts is killed at once, because it
may ignore SIGTERM."""

STEP_S = 60.0
"""One step takes milliseconds; behind 24 long prompts some 10 s."""

POLL_S = 0.1

_ZYGOTE = Path(__file__).resolve().parent / "zygote.py"

_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "UCX_NET_DEVICES": "lo",
    "UCX_RCACHE_MAX_UNRELEASED": "1024",
    "UCX_TLS": "tcp,self,sm",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    "VLLM_HOST_IP": HOST,
    "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}

_SAMPLE = re.compile(r"^(([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?) (\S+)$")


class EngineFailedError(RuntimeError):
    """A process ended or did not become ready; the message carries the end of its log."""


class Engine:
    """One running API server with all its processes."""

    def __init__(
        self, spec: EngineSpec, ports: Ports, log: Path, pid: int, connection: socket.socket
    ) -> None:
        self.spec = spec
        self.ports = ports
        self.url = f"http://{HOST}:{ports.api}"
        self.log = log
        self.pid = pid
        self._connection = connection
        self._started = time.monotonic()
        self._is_ready = False

    def wait_ready(self, timeout_s: float = ENGINE_START_S) -> float:
        """Blocks until ``/health`` answers 200; returns the seconds since the start.

        Raises:
            EngineFailedError: the engine ended first, or time ran out.
        """
        while not self._is_healthy():
            if self.has_ended(POLL_S):
                raise EngineFailedError(f"{self.spec.name} ended at start:\n{_tail(self.log)}")
            if time.monotonic() - self._started > timeout_s:
                raise EngineFailedError(
                    f"{self.spec.name} is not healthy after {timeout_s:.0f} s:\n{_tail(self.log)}"
                )
        self._is_ready = True
        return time.monotonic() - self._started

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether the engine's first process has ended, waiting for that up to ``wait_s``."""
        try:
            self._connection.settimeout(max(wait_s, 0.001))
            return self._connection.recv(1, socket.MSG_PEEK) is not None
        except TimeoutError:
            return False
        except OSError:
            return True

    def metrics(self) -> dict[str, float]:
        """One scrape, as `scrape` gives it, behind a fresh step.

        Metrics ride on an engine's steps: without one, an idle engine may show a state that is a
        step old. The step reads one token of prompt and loads nothing.
        """
        body = json.dumps({"model": MODEL_NAME, "prompt": [7], "max_tokens": 1}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=STEP_S) as answer:
            answer.read()
        return scrape(self.url)

    def stop(self) -> None:
        """Ends every process of the engine; blocks until they are gone. Safe to call twice."""
        if self._is_ready:
            self._signal(signal.SIGTERM)
        if not self._is_ready or not self.has_ended(STOP_GRACE_S):
            self._signal(signal.SIGKILL)
            self.has_ended(STOP_GRACE_S)
        self._connection.close()

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the engine's whole process group, unless it has ended."""
        if not self.has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


class Engines:
    """The zygote and every engine forked from it; a context manager that leaves nothing running."""

    def __init__(self, environment: Path, model: Path, logs: Path) -> None:
        """Starts the zygote at once; it imports vLLM while the caller does something else.

        Args:
            environment: The engine's environment, as `engine_env.ensure` returns it.
            model: The model's folder, as `ensure_model` returns it.
            logs: A folder for ``zygote.log`` and one log per engine.
        """
        self.model = model
        self._logs = logs
        self._running: list[Engine] = []
        self._taken_ports: set[int] = set()
        self._sockets = tempfile.TemporaryDirectory(prefix="engines-")
        self._socket_path = Path(self._sockets.name) / "zygote"
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / "zygote.log"
        with self._log.open("wb") as log:
            self._zygote = subprocess.Popen(
                [str(environment / "bin" / "python"), str(_ZYGOTE), str(self._socket_path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_clean_environment() | _ENVIRONMENT,
                start_new_session=True,
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
        """Stops everything."""
        self.close()

    def wait_zygote(self, timeout_s: float = ZYGOTE_START_S) -> None:
        """Blocks until vLLM is imported and engines can be forked.

        Raises:
            EngineFailedError: it ended first, or time ran out.
        """
        deadline = time.monotonic() + timeout_s
        while not self._socket_path.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._zygote.wait(POLL_S)
                raise EngineFailedError(f"the zygote ended at start:\n{_tail(self._log)}")
            if time.monotonic() > deadline:
                raise EngineFailedError(f"the zygote is not ready:\n{_tail(self._log)}")

    def start(self, spec: EngineSpec, ports: Ports | None = None) -> Engine:
        """Forks one engine and returns at once; `Engine.wait_ready` tells when it serves.

        Args:
            spec: What to start.
            ports: Those of an ended engine, to start it again in its place; else free ones.
        """
        self.wait_zygote()
        if ports is None:
            ports = ports_for(spec, self._taken_ports)
            self._taken_ports.update(ports.all(spec.num_ranks))
        log = self._log_path(spec.name)
        request = {
            "argv": spec.arguments(self.model, ports),
            "env": {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(ports.side_channel), **spec.env},
            "log": str(log),
        }
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self._socket_path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        pid = json.loads(_line(connection))["pid"]
        engine = Engine(spec, ports, log, pid, connection)
        self._running.append(engine)
        return engine

    def _log_path(self, name: str) -> Path:
        """One log per start: an engine started again leaves its predecessor's log alone."""
        numbers = range(2, 1000)
        names = (name, *(f"{name}-{number}" for number in numbers))
        return next(p for p in (self._logs / f"{n}.log" for n in names) if not p.exists())

    def close(self) -> None:
        """Stops every engine, then the zygote."""
        for engine in self._running:
            engine.stop()
        if not self._socket_path.exists():
            self._zygote.kill()  # it still imports, and looks at its input only afterwards
        if self._zygote.stdin is not None:
            self._zygote.stdin.close()
        try:
            self._zygote.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()
        self._sockets.cleanup()


def scrape(url: str) -> dict[str, float]:
    """Reads ``/metrics``: each name's sum over its labels, and each sample by name and labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    values: dict[str, float] = {}
    for line in text.splitlines():
        if sample := _SAMPLE.match(line):
            series, name, value = sample.groups()
            values[name] = values.get(name, 0.0) + float(value)
            if series != name:
                values[series] = float(value)
    return values


def ensure_model(environment: Path) -> Path:
    """Returns the tiny model's folder, making the model first where needed (some 10 s).

    It lies beside the environment and is named by the recipe, so a changed recipe makes a new one.
    """
    recipe = Path(__file__).resolve().parent / "model.py"
    key = hashlib.sha256(recipe.read_bytes()).hexdigest()[:12]
    folder = environment.parent / f"{environment.name}-model-{key}"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as scratch:
        made = Path(scratch) / "model"
        command = [str(environment / "bin" / "python"), str(recipe), str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EngineFailedError(f"making the model failed:\n{done.stderr[-2000:]}")
        with contextlib.suppress(OSError):  # another process was first: same recipe, same model
            made.rename(folder)
    return folder


def _clean_environment() -> dict[str, str]:
    """The caller's environment without what would lead the engine's Python astray."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"} and not name.startswith("VLLM_")
    }


def _line(connection: socket.socket) -> bytes:
    """Reads one line and not a byte more: what follows is for `Engine.has_ended`."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise EngineFailedError("the zygote closed the connection")
        line += byte
    return line


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-25:])
