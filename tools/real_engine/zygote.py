"""Imports vLLM once and forks API servers from it: an engine starts in seconds, not in minutes.

Runs inside the engine's environment, started by `real_engine.launch`. For tests and the demo only:
an engine made here forks where vLLM on a CPU would spawn.

**Protocol**, over a Unix stream socket, one connection per engine, one JSON object a line:

* launcher -> zygote: ``{"argv": [...], "env": {...}, "log": "path"}``
* zygote -> launcher: ``{"pid": 123}``, and when the engine has ended ``{"exit": status}``
* closing the connection kills the engine's whole process group.

The zygote ends, and everything it forked with it, when its standard input reaches its end: the
launcher holds the other end, so no engine outlives the process that wanted it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import multiprocessing
import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

ENTRY_MODULE = "vllm.entrypoints.openai.api_server"

PRELOADED = (
    ENTRY_MODULE,
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl",
    "vllm.model_executor.models.llama",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
    "xgrammar",
)

PROGRESS_DELAY_US = 1000
"""Pause of NIXL's progress thread between two looks; the default, 0, burns a core per worker."""

_PR_SET_PDEATHSIG = 1


@dataclass
class _Child:
    pid: int
    connection: socket.socket
    is_watched: bool = True


def main(socket_path: str) -> None:
    """Serves fork requests until standard input ends."""
    _preload()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{socket_path}.new")
    listener.listen()
    os.rename(f"{socket_path}.new", socket_path)  # it can be connected to from the first moment
    print("zygote ready", flush=True)
    _Zygote(listener).run()


def _preload() -> None:
    """Imports what every engine needs, and bends what forking needs bent."""
    torch: Any = importlib.import_module("torch")

    torch.set_num_threads(1)
    for name in PRELOADED:
        importlib.import_module(name)
    _fork_instead_of_spawn()
    _slow_progress_thread()


def _fork_instead_of_spawn() -> None:
    """Makes every vLLM module start its processes by fork: they inherit what is imported here."""
    context = multiprocessing.get_context("fork")
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and hasattr(module, "get_mp_context"):
            module.get_mp_context = lambda: context  # type: ignore[attr-defined]


def _slow_progress_thread() -> None:
    """Sets the delay that NIXL's Python API fixes at 0 and offers no argument for."""
    api: Any = importlib.import_module("nixl._api")
    bindings = api.nixlBind

    def delay_us() -> int:
        return int(os.environ.get("NIXL_PROGRESS_DELAY_US", PROGRESS_DELAY_US))

    agent_config: Any = bindings.nixlAgentConfig

    class DelayedConfig(agent_config):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, delay_us() if name == "pthrDelay" else value)

    bindings.nixlAgentConfig = DelayedConfig


class _Zygote:
    """The loop: accepts requests, forks, reports ends, kills what nobody wants any more."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, wake = socket.socketpair()
        self._wake.setblocking(False)
        wake.setblocking(False)
        self._wake_end = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_die_with_parent)

    def run(self) -> None:
        """Returns never: the end of standard input ends the process."""
        self._selector.register(self._listener, selectors.EVENT_READ, "accept")
        self._selector.register(self._wake, selectors.EVENT_READ, "child")
        self._selector.register(sys.stdin, selectors.EVENT_READ, "end")
        while True:
            for key, _ in self._selector.select():
                if key.data == "accept":
                    self._accept()
                elif key.data == "child":
                    self._wake.recv(4096)
                    self._reap()
                elif key.data == "end":
                    self._end()
                else:
                    self._hung_up(key.data)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        with connection.makefile("r") as lines:
            request = json.loads(lines.readline())
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._close_inherited(connection)
            _become_engine(request)
        self._children[pid] = _Child(pid, connection)
        _send(connection, {"pid": pid})
        self._selector.register(connection, selectors.EVENT_READ, self._children[pid])

    def _close_inherited(self, connection: socket.socket) -> None:
        """An engine that kept these open would hide the others' ends from the zygote."""
        self._selector.close()
        for each in (self._listener, self._wake, self._wake_end, connection):
            each.close()
        for child in self._children.values():
            child.connection.close()

    def _reap(self) -> None:
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid == 0:
                continue
            del self._children[pid]
            _kill_group(pid)
            _send(child.connection, {"exit": os.waitstatus_to_exitcode(status)})
            if child.is_watched:
                self._selector.unregister(child.connection)
            child.connection.close()

    def _hung_up(self, child: _Child) -> None:
        """The launcher closed its end (it never sends a second line); the rest is the reaping."""
        self._selector.unregister(child.connection)
        child.is_watched = False
        _kill_group(child.pid)

    def _end(self) -> None:
        for pid in self._children:
            _kill_group(pid)
        os._exit(0)


def _send(connection: socket.socket, message: dict[str, int]) -> None:
    with contextlib.suppress(OSError):  # the launcher may be gone
        connection.sendall(json.dumps(message).encode() + b"\n")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    """The kernel kills this process when the one that forked it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become_engine(request: dict[str, Any]) -> None:
    """Turns this fork into an API server; never returns."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(request["env"])
    sys.argv = [ENTRY_MODULE, *request["argv"]]
    entry: Any = importlib.import_module("vllm.entrypoints.launchers.api_server.entry")
    try:
        entry.main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
