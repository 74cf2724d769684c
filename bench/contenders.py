"""What stands between the load and the mock engines: how each contender is installed and started.

Every contender gets mock engines of its own, so that one's probes never count as another's legs.
"""

import dataclasses
import http.client
import importlib.metadata
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from mock_engine import Stats
from publish import Sent

BENCH = pathlib.Path(__file__).parent
TOKENIZER = BENCH.parent / "tests" / "protocol" / "vectors" / "tokenizer"
VLLM_ROUTER_VERSION = "0.1.17"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 10.0


class BenchError(Exception):
    """The run itself is broken: something did not install, start or answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contender:
    """One running way from the load to the engines.

    Attributes:
        name: as printed.
        version: of its distribution, empty for `direct`.
        command: how it was started, programs by name and ports as words; empty for `direct`.
        url: where the load goes.
        pid: the router's process, None for `direct`.
        prefill_port: its prefill engine, None for `direct` and where decode does it all.
        decode_port: its decode engine.
        is_free: whether it decides by itself if a request has a prefill leg.
    """

    name: str
    version: str
    command: str
    url: str
    pid: int | None
    prefill_port: int | None
    decode_port: int
    is_free: bool = False


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(port: int, path: str) -> tuple[int, bytes]:
    """GET from loopback: status and body; 0 where nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def engine_stats(port: int) -> Stats:
    """The counters of one mock engine."""
    status, body = fetch(port, "/stats")
    if status != 200:
        raise BenchError(f"mock engine on port {port}: expected its stats, got status {status}")
    return msgspec.json.decode(body, type=Stats)


def set_pace(port: int, step_s: float, burst: int) -> None:
    """Set the time between two steps of one mock engine, and each stream's events in a step."""
    for path in (f"/pace/{round(step_s * 1e6)}", f"/burst/{burst}"):
        status, _ = fetch(port, path)
        if status != 200:
            raise BenchError(f"mock engine on port {port}: expected to set {path}, got {status}")


def await_ready(process: subprocess.Popen[bytes], port: int, path: str, log: pathlib.Path) -> None:
    """Wait until `path` answers 200; a process that ends or stays silent breaks the run."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if fetch(port, path)[0] == 200:
            return
        time.sleep(0.1)
    tail = log.read_text(errors="replace")[-2000:]
    raise BenchError(f"{process.args!r} did not become ready; its last words:\n{tail}")


@contextmanager
def running(command: list[str], log: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child process with its output in `log`, ended when the block ends."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_engine(stack: ExitStack, name: str, out: pathlib.Path) -> int:
    """Start one mock engine and return its port."""
    port, log = free_port(), out / f"{name}.log"
    script = str(BENCH / "mock_engine.py")
    command = [sys.executable, script, "--port", str(port), "--engine-id", name]
    process = stack.enter_context(running(command, log))
    await_ready(process, port, "/health", log)
    return port


class Publisher:
    """A process that publishes KV events (`publish.py`).

    Attributes:
        endpoints: Where, one per engine.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.endpoints: list[str] = msgspec.json.decode(self.read())

    def read(self) -> bytes:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the publisher ended")
        return line

    def set_rate(self, rate: int) -> Sent:
        """Have it store so many blocks a second; what it had sent by then."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % rate)
        self._process.stdin.flush()
        return msgspec.json.decode(self.read(), type=Sent)


def start_publisher(stack: ExitStack, num_engines: int) -> Publisher:
    """Start one; `stack` ends it. Its second line comes when all are subscribed to and full."""
    process = subprocess.Popen(
        [sys.executable, str(BENCH / "publish.py"), "--engines", str(num_engines)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    stack.enter_context(process)
    stack.callback(process.terminate)
    return Publisher(process)


def install_vllm_router() -> pathlib.Path:
    """The `vllm-router` program, installed on first use into an environment in the user's cache."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    home = cache / "transload" / f"vllm-router-{VLLM_ROUTER_VERSION}"
    program = home / "bin" / "vllm-router"
    if program.exists() and (home / ".installed").exists():
        return program
    print(f"installing vllm-router {VLLM_ROUTER_VERSION} into {home}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-qq"]
    wanted = ["--disable-pip-version-check", "--only-binary", ":all:"]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        # Its launcher imports its dependencies, though the router itself is one Rust library.
        subprocess.run([*pip, *wanted, f"vllm-router=={VLLM_ROUTER_VERSION}"], check=True)
    except subprocess.CalledProcessError as error:
        raise BenchError(f"vllm-router {VLLM_ROUTER_VERSION} did not install: {error}") from error
    (home / ".installed").touch()
    return program


def transload_program() -> pathlib.Path:
    """The `transload` program of this environment."""
    program = pathlib.Path(sys.executable).parent / "transload"
    if not program.exists():
        raise BenchError(f"expected {program.name} beside {sys.executable}: run make install")
    return program


def transload_arguments(prefill: str, decode: str, port: int) -> list[str]:
    """Our own router with a policy under which every request has both legs, as in the others."""
    engines = ["--prefill", prefill, "--decode", decode]
    return ["serve", *engines, "--port", str(port), "--policy", "least-loaded"]


def cost_arguments(prefill: str, decode: str, port: int) -> list[str]:
    """Our own router with its defaults: cost, tokens, events (see `start_router`)."""
    engines = ["--prefill", prefill, "--decode", decode]
    return ["serve", *engines, "--port", str(port), "--tokenizer", str(TOKENIZER)]


def alone_arguments(_prefill: str, decode: str, port: int) -> list[str]:
    """Our own router with one leg per request and nothing known: what `cost` adds to it shows."""
    return ["serve", "--decode", decode, "--port", str(port), "--policy", "least-loaded"]


def vllm_router_arguments(prefill: str, decode: str, port: int) -> list[str]:
    """vllm-router in its NIXL two-step mode, one process, its default threads and policy.

    The one departure from its defaults saves it work: `error`, since 0.1.17 reads `warning` as
    `info`.
    """
    return [
        "--vllm-pd-disaggregation",
        *("--prefill", prefill, "--decode", decode),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        *("--log-level", "error"),
    ]


def cheapest_arguments(prefill: str, decode: str, port: int) -> list[str]:
    """vllm-router without the prefix tree of its default policy, `cache_aware`."""
    return [*vllm_router_arguments(prefill, decode, port), "--policy", "round_robin"]


ARGUMENTS = {
    "transload": transload_arguments,
    "transload-cost": cost_arguments,
    "transload-alone": alone_arguments,
    "vllm-router": vllm_router_arguments,
    "vllm-router-rr": cheapest_arguments,
}


def start_router(stack: ExitStack, name: str, out: pathlib.Path) -> Contender:
    """Start one router in front of a pair of mock engines and wait until it is ready."""
    is_ours = name.startswith("transload")
    program = transload_program() if is_ours else install_vllm_router()
    is_alone, is_free = name == "transload-alone", name == "transload-cost"
    prefill_port = None if is_alone else start_engine(stack, f"{name}-prefill", out)
    decode_port = start_engine(stack, f"{name}-decode", out)
    port, log = free_port(), out / f"{name}.log"
    made = ARGUMENTS[name](
        f"http://127.0.0.1:{prefill_port}", f"http://127.0.0.1:{decode_port}", port
    )
    command, publisher = [str(program), *made], None
    if is_free:
        publisher = start_publisher(stack, 2)
        for engine, endpoint in zip(("prefill-0", "decode-0"), publisher.endpoints, strict=True):
            command += ["--kv-event-endpoint", f"{engine}={endpoint}"]
    process = stack.enter_context(running(command, log))
    await_ready(process, port, "/readyz" if is_ours else "/readiness", log)
    if publisher is not None:
        publisher.read()  # The caches are full; nothing comes from now on.
    return Contender(
        name=name,
        version=importlib.metadata.version("transload") if is_ours else VLLM_ROUTER_VERSION,
        command=" ".join(["transload" if is_ours else name, *made]).replace(f"{BENCH.parent}/", ""),
        url=f"http://127.0.0.1:{port}",
        pid=process.pid,
        prefill_port=prefill_port,
        decode_port=decode_port,
        is_free=is_free,
    )


def start_direct(stack: ExitStack, out: pathlib.Path) -> Contender:
    """No router: the load goes straight to a decode engine."""
    port = start_engine(stack, "direct-decode", out)
    return Contender("direct", "", "", f"http://127.0.0.1:{port}", None, None, port)


def start(stack: ExitStack, name: str, out: pathlib.Path) -> Contender:
    """Start one contender; `stack` ends all that it needed."""
    return start_direct(stack, out) if name == "direct" else start_router(stack, name, out)
