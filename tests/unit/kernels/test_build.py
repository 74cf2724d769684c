"""What is compiled when, where it is kept, and what is refused."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.waiting import soon, until
from transload_kernels.cpu import build
from transload_kernels.errors import BuildFailed, Unsupported

MADE = build._sealed(b"made\n")


class FakeCompiler:
    """A script that notes each compilation and writes its result, or fails."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / "cxx"
        self.calls = folder / "calls"
        self.behave()

    def behave(self, compiling: str = 'echo made > "$out"', version: str = "one") -> None:
        self.path.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo {version} && exit\n'
            f'echo call >> "{self.calls}"\n'
            'while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done\n'
            f"{compiling}\n"
        )
        self.path.chmod(0o755)

    @property
    def num_calls(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    made = FakeCompiler(tmp_path / "bin")
    monkeypatch.setenv("CXX", str(made.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def test_compiles_once(compiler: FakeCompiler) -> None:
    first = build.shared_object()
    assert first.read_bytes() == MADE
    assert build.shared_object() == first
    assert compiler.num_calls == 1


def test_nothing_but_the_result_and_its_lock_is_left(compiler: FakeCompiler) -> None:
    path = build.shared_object()
    assert sorted(path.parent.iterdir()) == sorted([path, path.with_suffix(".lock")])
    assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("changed", ["compiler", "flags", "processor", "source"])
def test_what_decides_the_code_decides_the_file(
    changed: str, compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.shared_object()
    match changed:
        case "compiler":
            compiler.behave(version="two")
        case "flags":
            monkeypatch.setattr(build, "flags", lambda: ("-O1",))
        case "processor":
            monkeypatch.setattr(build, "_processor", lambda: "another")
        case "source":
            source = tmp_path / "one.cpp"
            source.write_text("int one;")
            monkeypatch.setattr(build, "sources", lambda: [source])
    assert build.shared_object() != first
    assert compiler.num_calls == 2


async def test_who_waits_for_anothers_compilation_compiles_nothing(
    compiler: FakeCompiler,
) -> None:
    path = build.shared_object()
    path.unlink()
    script = "from transload_kernels.cpu import build; print(build.shared_object())"
    with build._locked(path.with_suffix(".lock")):
        waiting = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
        )
        # `/proc/locks` marks who waits for a lock by an arrow.
        asks = re.compile(rf"-> FLOCK .* {waiting.pid} ")
        try:
            await until(lambda: asks.search(Path("/proc/locks").read_text()), "asking for the lock")
            path.write_bytes(build._sealed(b"of another"))
            path.chmod(0o700)
        except BaseException:
            waiting.kill()
            await waiting.communicate()
            raise
    told, _ = await soon(waiting.communicate())
    assert told.decode() == f"{path}\n"
    assert path.read_bytes() == build._sealed(b"of another")
    assert compiler.num_calls == 1


def test_a_failing_compiler_is_quoted_and_leaves_nothing(compiler: FakeCompiler) -> None:
    compiler.behave("for i in $(seq 40); do echo line $i >&2; done; exit 3")
    with pytest.raises(BuildFailed) as caught:
        build.shared_object()
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{compiler.path} ended with status 3; its last lines:"
    assert lines[-1] == "line 40"
    assert len(lines) == 13
    compiler.behave()
    assert build.shared_object().read_bytes() == MADE


def test_a_child_forked_while_one_compiles_keeps_no_lock(tmp_path: Path) -> None:
    path, (reading, writing) = tmp_path / "lock", os.pipe()
    with build._locked(path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    with path.open("wb") as again:
        try:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(writing)
            os.close(reading)
            os.waitpid(child, 0)


@pytest.mark.parametrize("torn", [b"", MADE[:3], MADE[:-1], bytes(len(MADE))])
def test_a_torn_result_is_compiled_anew(torn: bytes, compiler: FakeCompiler) -> None:
    path = build.shared_object()
    path.write_bytes(torn)
    assert build.shared_object().read_bytes() == MADE
    assert compiler.num_calls == 2


def test_a_compiler_that_makes_nothing_has_failed(compiler: FakeCompiler) -> None:
    compiler.behave("exit 0")
    with pytest.raises(BuildFailed, match="without a result"):
        build.shared_object()


def test_a_result_that_cannot_be_kept_is_no_result(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(Unsupported, match=r"cannot keep the compiled kernels: .*No space left"):
        build.shared_object()


def test_a_compiler_that_is_no_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(Unsupported, match=r"no C\+\+ compiler: CXX=g\+\+ ': No closing quotation"):
        build.find_compiler()


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match=r"no C\+\+ compiler: c\+\+, g\+\+, clang\+\+ not on"):
        build.shared_object()
    monkeypatch.setenv("CXX", "nowhere-cc -m32")
    with pytest.raises(Unsupported, match="CXX=nowhere-cc -m32 not on PATH"):
        build.shared_object()


def test_the_compiler_is_the_named_one_or_the_first_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("g++", "clang++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.find_compiler() == [str(tmp_path / "g++")]
    monkeypatch.setenv("CXX", "clang++ --verbose")
    assert build.find_compiler() == [str(tmp_path / "clang++"), "--verbose"]


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_result_that_others_may_write_is_refused(mode: int, compiler: FakeCompiler) -> None:
    path = build.shared_object()
    path.chmod(mode)
    with pytest.raises(Unsupported, match="not this user's alone"):
        build.shared_object()
    assert compiler.num_calls == 1


def test_a_link_in_place_of_the_result_is_refused(compiler: FakeCompiler, tmp_path: Path) -> None:
    path = build.shared_object()
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    with pytest.raises(Unsupported, match="not this user's alone"):
        build.shared_object()


def test_anothers_result_is_refused(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.shared_object()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(Unsupported, match="not this user's alone"):
        build.shared_object()


def test_a_folder_that_others_may_write_is_refused(compiler: FakeCompiler) -> None:
    build.cache_folder().chmod(0o777)
    with pytest.raises(Unsupported, match="not this user's alone"):
        build.shared_object()
    assert compiler.num_calls == 0


def test_a_folder_that_cannot_be_made_is_named(
    compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Unsupported, match="set XDG_CACHE_HOME"):
        build.shared_object()


def test_a_cache_home_that_is_not_absolute_is_ignored(
    compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / ".cache/transload/kernels"


def test_importing_compiles_nothing(compiler: FakeCompiler) -> None:
    done = subprocess.run([sys.executable, "-c", "import transload_kernels.cpu"], check=False)
    assert done.returncode == 0
    assert compiler.num_calls == 0


def test_the_sources_are_in_the_package() -> None:
    names = {path.name for path in build.sources()}
    assert {"rows.cpp", "transpose.cpp", "convert.cpp", "digest.cpp", "nest.h"} <= names


def test_the_real_compiler_builds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler here")
    assert build.shared_object().stat().st_size > 10_000
