"""Makes the real engine's environment (vLLM on CPU with NIXL) once, and prints where it lies.

The folder is ``$XDG_CACHE_HOME/transload/engine-<key>`` (``~/.cache`` by default). The key covers
the lock file, the Python and the recipe below, so every checkout, test run and demo of one user
shares one installation of about 3.9 GB, and a changed pin makes a new one beside it.

Needs nothing but the standard library: it runs before anything else is installed.

**Rules**

* One writer: the lock file beside the folder is held while installing; the second caller waits for
  the first and then finds the work done.
* ``complete`` is written last. A folder without it is what an interrupted installation left behind,
  and is made again from the start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PYTHON = "python3.11"
LOCK_FILE = Path(__file__).resolve().parent / "real_engine" / "requirements.lock"
RECIPE = "1"
"""Raised when the steps of `_install` change in a way that old folders must not survive."""

FREE_SPACE_NEEDED_BYTES = 6 * 1024**3
"""The environment takes 3.9 GB (du, x86-64, torch 2.13.0+cpu) and pip unpacks beside it."""

HEARTBEAT_S = 10.0
"""How often a running step says that it is still running."""

_PROBE = "import torch, nixl._api, vllm.version; print(torch.__version__, vllm.version.__version__)"


class EngineEnvError(RuntimeError):
    """This machine cannot make or use the environment; the message says what to do."""


def cache_root() -> Path:
    """The folder that holds the environments and the models made for them."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "transload"


def key() -> str:
    """Names one environment: equal keys mean interchangeable folders."""
    recipe = f"{PYTHON}\n{RECIPE}\n".encode() + LOCK_FILE.read_bytes()
    return hashlib.sha256(recipe).hexdigest()[:12]


def folder() -> Path:
    """Where the environment lies or will lie."""
    return cache_root() / f"engine-{key()}"


def is_complete() -> bool:
    """Whether the environment can be used without installing anything."""
    return (folder() / "complete").is_file()


def ensure() -> Path:
    """Returns the environment's folder, installing it first where needed.

    Blocks for minutes on the first call, and for as long as another process installs it.

    Raises:
        EngineEnvError: there is no Python 3.11, too little space, or pip failed.
    """
    if is_complete():
        return folder()
    cache_root().mkdir(parents=True, exist_ok=True)
    with _held(cache_root() / f"engine-{key()}.lock"):
        if not is_complete():
            _install(folder())
    return folder()


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Holds an exclusive lock; the kernel drops it when this process ends, however it ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process installs the engine; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(target: Path) -> None:
    """Builds the environment in place: a virtual environment does not survive being moved."""
    python = _find_python()
    _check_space(target.parent)
    if target.exists():
        _say("removing what an interrupted installation left")
        shutil.rmtree(target)
    _say(f"installing the real engine into {target} (once; minutes, about 4 GB)")
    started = time.monotonic()
    target.mkdir()
    log = target / "install.log"
    _run("creating the environment", [python, "-m", "venv", str(target)], log)
    pip = [str(target / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    _run("installing vLLM, torch and NIXL", [*pip, "--no-deps", "-r", str(LOCK_FILE)], log)
    _finish_torch(target, pip, log)
    (target / "complete").write_text(f"{RECIPE}\n")
    _say(f"engine installed in {time.monotonic() - started:.0f} s")


def _finish_torch(target: Path, pip: list[str], log: Path) -> None:
    """Adds torch's own dependencies where the index served the build that needs CUDA's libraries.

    The pin names no build: an index of CPU builds serves one that is whole by itself, the default
    index one that does not import without NVIDIA's packages, even on a machine without a GPU.
    """
    probe = [str(target / "bin" / "python"), "-c", _PROBE]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return
    torch = next(line for line in LOCK_FILE.read_text().splitlines() if line.startswith("torch=="))
    _run("adding the libraries this torch needs", [*pip, "-c", str(LOCK_FILE), torch], log)
    _run("importing the engine", probe, log)


def _find_python() -> str:
    """The interpreter of the engine's environment, which is pinned however this script is run."""
    if Path(sys.executable).name == PYTHON:
        return sys.executable
    found = shutil.which(PYTHON)
    if found is None:
        raise EngineEnvError(
            f"the real engine needs {PYTHON} on PATH (this is Python {sys.version.split()[0]}): "
            "its wheels are pinned for Python 3.11"
        )
    return found


def _check_space(parent: Path) -> None:
    free = shutil.disk_usage(parent).free
    if free < FREE_SPACE_NEEDED_BYTES:
        raise EngineEnvError(
            f"{parent} has {free / 1024**3:.1f} GiB free; the engine needs "
            f"{FREE_SPACE_NEEDED_BYTES / 1024**3:.0f} (XDG_CACHE_HOME moves it elsewhere)"
        )


def _run(what: str, command: list[str], log: Path) -> None:
    """Runs one step, its output in the log, and says every now and then that it goes on."""
    started = time.monotonic()
    free_bytes = shutil.disk_usage(log.parent).free
    _say(f"{what} ...")
    with log.open("ab") as output:
        step = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while step.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    step.wait(HEARTBEAT_S)
                    break
                written = free_bytes - shutil.disk_usage(log.parent).free
                elapsed_s = time.monotonic() - started
                _say(f"{what}: {elapsed_s:.0f} s, {max(written, 0) / 1e9:.1f} GB written")
        finally:
            if step.poll() is None:
                step.terminate()
                step.wait()
    if step.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise EngineEnvError(f"{what} failed (exit {step.returncode}); the end of {log}:\n{tail}")
    _say(f"{what}: done in {time.monotonic() - started:.0f} s")


def _say(line: str) -> None:
    """Progress goes to stderr, so that stdout is the folder and nothing else."""
    print(f"[engine] {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Prints the folder on stdout; progress and errors go to stderr."""
    try:
        print(ensure())
    except EngineEnvError as error:
        print(f"[engine] error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
