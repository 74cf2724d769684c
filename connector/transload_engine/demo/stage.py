"""Two engines whose caches differ and the router in front of them, each a process of its own."""

import contextlib
import json
import secrets
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from transload_engine.demo.processes import Process
from transload_engine.server.kv_options import TOKEN_VARIABLE

MODEL: Final = "demo"
KV_DTYPE: Final = "bfloat16"

POLICY: Final = "prefix"
"""Hands each prompt from one engine to the other. By cost, a model this small would be read sooner
than its blocks can travel."""

ANY_PORT: Final = ("--host", "127.0.0.1", "--port", "0")

# Engines took 3-8 s to start and the router 1-3 s (2 shared cores, load 3-8, 2026-11).
START_S: Final = 120.0
POLL_S: Final = 0.05

END_S: Final = 2.0
"""From a connection that breaks off to the end of the process that it led to."""

ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "TRANSLOAD_KERNELS": "torch",
}
"""One thread an engine: on 2 cores that others use, too, two threads that wait for each other took
10 times as long. Blocks converted by torch: nobody waits for a C++ compiler, or needs one; with the
compiled kernels the first start took 11 s of a core more (2026-11)."""


CACHE_TOKENS: Final = 16_384
"""Room in each engine's cache."""


@dataclass(frozen=True)
class Placement:
    """How an engine's cache lies in memory, by its options `--kv-layout` and `--block-size`."""

    layout: str
    block_size: int

    @property
    def num_blocks(self) -> int:
        """Of the cache, the null block included."""
        return 1 + CACHE_TOKENS // self.block_size


PREFILL: Final = Placement("NHD", 16)
DECODE: Final = Placement("k-transposed", 32)


class Stage:
    """See the module; the engines' processes run from here on, and all end behind the block.

    Args:
        model: A checkpoint's folder.
    """

    def __init__(self, model: Path) -> None:
        self._model = model
        self._ending = threading.Event()
        self._stack = contextlib.ExitStack()
        self._environment = {**ENVIRONMENT, TOKEN_VARIABLE: secrets.token_hex()}
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        """Start the engines; `wait_ready` is to follow."""
        for name, placement in (("prefill", PREFILL), ("decode", DECODE)):
            arguments = engine_arguments(self._model, placement)
            self._start(f"the {name} engine", "transload_engine", arguments)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all, at the same time."""
        for process in self._processes:
            process.tell_end()
        self._stack.close()

    def wait_engines(self) -> tuple[str, str]:
        """Wait for the engines; base URLs of prefill and decode.

        Raises:
            ProcessFailed: One does not come up.
        """
        prefill, decode = (_engine_url(engine) for engine in self._processes)
        return prefill, decode

    def wait_router(self, prefill: str, decode: str) -> str:
        """Start the router, and wait until a block has been handed over; its base URL.

        Raises:
            ProcessFailed: It does not come to that.
        """
        arguments = router_arguments(self._model, prefill, decode)
        router = self._start("the router", "transload_router", arguments)
        url = router.wait_line(r"listens on (http://[^\s,]+)", START_S)[1]
        _wait_ready(router, url)
        return url

    def wait_end(self) -> None:
        """Wait until something ends that was not told to.

        Raises:
            ProcessFailed: Names it.
        """
        self._ending.wait()
        self.check()

    def check(self) -> None:
        """See that everything runs; blocks for a moment, in which whoever hangs up may end.

        Raises:
            ProcessFailed: Names what does not.
        """
        self._ending.wait(END_S)
        for process in self._processes:
            if process.has_ended:
                raise process.failure("")

    def _start(self, name: str, module: str, arguments: list[str]) -> Process:
        process = Process(name, module, arguments, self._environment, self._ending)
        self._processes.append(self._stack.enter_context(process))
        return process


def engine_arguments(model: Path, placement: Placement) -> list[str]:
    """The command line of `python -m transload_engine`."""
    named = ["--model", str(model), "--served-model-name", MODEL, *ANY_PORT]
    cache = ["--kv-layout", placement.layout, "--kv-dtype", KV_DTYPE]
    cache += ["--block-size", str(placement.block_size)]
    return [*named, *cache, "--num-gpu-blocks-override", str(placement.num_blocks)]


def router_arguments(model: Path, prefill: str, decode: str) -> list[str]:
    """The command line of `transload`."""
    engines = ["--prefill", prefill, "--decode", decode]
    return ["serve", *engines, *ANY_PORT, "--policy", POLICY, "--tokenizer", str(model)]


def _engine_url(engine: Process) -> str:
    told: dict[str, Any] = json.loads(engine.wait_line(r'^\{"name":.*\}$', START_S)[0])
    return str(told["url"])


def _wait_ready(router: Process, url: str) -> None:
    """Wait until the router has found both engines, and handed something from one to the other."""
    deadline = time.monotonic() + START_S
    while not _is_ready(url):
        if router.has_ended or time.monotonic() > deadline:
            raise router.failure(f"was not ready within {START_S:.0f} s")
        time.sleep(POLL_S)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=START_S) as answer:
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return bool(told["is_ready"]) and all(each["health"] == "up" for each in told["engines"])
