"""Builds the C++ kernels with the compiler that is here, once per machine and user.

**Rules.** Nothing is compiled at import. The shared object lies in
`$XDG_CACHE_HOME/transload/kernels` (or `~/.cache/...`), named by a digest of the sources, the
flags, what the compiler says it is, and the processor's features: `-march=native` code never meets
another processor, and a new source is a new file. It appears there by a rename, complete or not at
all, and ends with a digest of what is before: what a full disk or a power cut tore is compiled
anew, as loading it would end the process. Processes that want the same one wait for the first by a
lock. What others than this user could have written is not loaded.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Final

from transload_kernels.errors import BuildFailed, Unsupported

COMPILERS: Final = ("c++", "g++", "clang++")
"""Names that are looked for, in this order, where `CXX` names none."""

FLAGS: Final = (
    "-std=c++17",
    "-O3",
    # A product and a sum round twice, as the reference does.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-fno-plt",
    "-fPIC",
    "-pthread",
    "-shared",
)
_NATIVE: Final = {"x86_64": "-march=native", "aarch64": "-mcpu=native"}
_TIMEOUT_S: Final = 300.0
_LAST_LINES: Final = 12
_SEAL_BYTES: Final = hashlib.sha256().digest_size
_SOURCES: Final = pathlib.Path(__file__).parent


def sources() -> list[pathlib.Path]:
    """The C++ files of this package, headers included, by name."""
    return sorted(path for path in _SOURCES.iterdir() if path.suffix in {".cpp", ".h"})


def find_compiler() -> list[str]:
    """The compiler's command: `CXX`, arguments and all, or the first of `COMPILERS` there is.

    Raises:
        Unsupported: There is none; says what to install.
    """
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise Unsupported(f"no C++ compiler: CXX={os.environ['CXX']}: {error}") from error
    for command in [named] if named else [[name] for name in COMPILERS]:
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    looked_for = f"CXX={shlex.join(named)}" if named else ", ".join(COMPILERS)
    raise Unsupported(
        f"no C++ compiler: {looked_for} not on PATH; install one (Debian: g++, Fedora: gcc-c++, "
        "Alpine: g++) or set CXX"
    )


def flags() -> tuple[str, ...]:
    """The compiler's flags on this machine."""
    native = _NATIVE.get(platform.machine())
    return (*FLAGS, native) if native else FLAGS


def cache_folder() -> pathlib.Path:
    """Where shared objects are kept; made, for this user alone, where it is missing.

    Raises:
        Unsupported: It cannot be made, or others may write there.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = pathlib.Path(named) if os.path.isabs(named) else pathlib.Path.home() / ".cache"
        folder = root / "transload" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(folder, stat.S_ISDIR):
            raise Unsupported(_not_ours(folder))
    except (OSError, RuntimeError) as error:
        raise Unsupported(
            f"no folder for the compiled kernels: {error}; set XDG_CACHE_HOME"
        ) from error
    return folder


def shared_object() -> pathlib.Path:
    """The compiled kernels' path; compiles them first where this machine has none yet.

    Blocks for a compiler's run (some seconds), or for another process's.

    Raises:
        Unsupported: No compiler, no folder for the result, or one that others may write.
        BuildFailed: The compiler failed; the message ends with its last lines.
    """
    compiler = find_compiler()
    path = cache_folder() / f"cpu-{_digest(compiler)}.so"
    try:
        if not _is_kept(path):
            with _locked(path.with_suffix(".lock")):
                if not _is_kept(path):
                    _compile(compiler, path)
    except OSError as error:
        raise Unsupported(f"cannot keep the compiled kernels: {error}") from error
    return path


def _is_kept(path: pathlib.Path) -> bool:
    """Whether a result is there, ours and whole."""
    try:
        is_ours = _is_ours(path, stat.S_ISREG)
    except FileNotFoundError:
        return False
    if not is_ours:
        raise Unsupported(_not_ours(path))
    content = path.read_bytes()
    return _sealed(content[:-_SEAL_BYTES]) == content


def _sealed(content: bytes) -> bytes:
    """A result with its digest behind it, which loaders do not look at."""
    return content + hashlib.sha256(content).digest()


def _compile(compiler: list[str], path: pathlib.Path) -> None:
    units = [str(source) for source in sources() if source.suffix == ".cpp"]
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as folder:
        made = pathlib.Path(folder) / path.name
        _run([*compiler, *flags(), "-o", str(made), *units])
        if not made.is_file():
            raise BuildFailed(f"{compiler[0]} ended without an error and without a result")
        made.write_bytes(_sealed(made.read_bytes()))
        made.chmod(0o700)
        made.replace(path)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        last = (done.stderr + done.stdout).strip().splitlines()[-_LAST_LINES:]
        raise BuildFailed(
            "\n".join([f"{command[0]} ended with status {done.returncode}; its last lines:", *last])
        )
    return done.stdout


def _digest(compiler: list[str]) -> str:
    digest = hashlib.sha256()
    for source in sources():
        content = source.read_bytes()
        digest.update(f"{source.name} {len(content)}\n".encode() + content)
    made_with = (shlex.join(compiler), *flags(), _run([*compiler, "--version"]), _processor())
    digest.update("\n".join(made_with).encode())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What tells processors apart: their features, as the kernel lists them."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = ("flags", "features", "cpu part", "model name")
    told = sorted({line for line in lines if line.partition("\t")[0].strip().lower() in names})
    return "\n".join([platform.machine(), *told])


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Unsupported(f"no lock for the compiled kernels: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # A child that was forked meanwhile has the descriptor, too, and would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _is_ours(path: pathlib.Path, is_kind: Callable[[int], bool]) -> bool:
    """Of the right kind and no link, this user's, and nobody else may write it."""
    status = path.lstat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not others_write


def _not_ours(path: pathlib.Path) -> str:
    return (
        f"{path} is not this user's alone (another's, a link, or others may write it); not loaded: "
        "remove it, or set XDG_CACHE_HOME"
    )
