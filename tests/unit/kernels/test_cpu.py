"""The C++ kernels beyond the conformance suite: streamed, split, portable, sanitised."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from support.kernel_cases import MOVES, Case, Outcome, assert_same, run
from support.kernel_numbers import NUMBERS
from transload_kernels import dispatch
from transload_kernels.cpu import CpuKernels, build
from transload_kernels.cpu.kernels import default_threads
from transload_kernels.dispatch import Choice
from transload_kernels.errors import BadArgument, Unsupported
from transload_kernels.formats import Format

FAMILIES = {family.__name__: family for family in (*MOVES, *NUMBERS)}

# What large calls do, made to happen at any size; and what other processors run.
SMALLEST = ("-O1", "-DTRANSLOAD_STREAM_CALL_BYTES=0", "-DTRANSLOAD_MIN_BYTES_PER_THREAD=64")
VARIANTS = {
    "streamed, three threads": SMALLEST,
    "portable": (*SMALLEST, "-DTRANSLOAD_PORTABLE"),
    "sanitised": (*SMALLEST, "-fsanitize=undefined", "-fno-sanitize-recover"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("kernels")

    @cache
    def compiled(variant: str) -> Path:
        path = folder / f"{variant.replace(' ', '-')}.so"
        units = [str(source) for source in build.sources() if source.suffix == ".cpp"]
        command = [*build.find_compiler(), *build.flags(), *VARIANTS[variant]]
        subprocess.run([*command, "-o", str(path), *units], check=True)
        return path

    return compiled


def share(family: str, variant: str) -> list[tuple[Case, Outcome]]:
    """Each variant's share of every second case; the library as it is built by itself runs all."""
    cases = list(FAMILIES[family]())[list(VARIANTS).index(variant) :: 2 * len(VARIANTS)]
    return [(case, run(case, "reference")) for case in cases]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_variant_does_what_the_reference_does(
    variant: str,
    family: str,
    library: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = share(family, variant)
    kernels = CpuKernels(threads=3, library=library(variant))
    monkeypatch.setattr(dispatch, "choose", lambda *_: Choice("cpu", kernels, "under test"))
    for case, outcome in expected:
        assert_same(case, run(case, "cpu"), outcome)


@pytest.mark.parametrize("num_tokens", [16, 32, 128])
@pytest.mark.parametrize("element", [1, 2, 4, 8])
@pytest.mark.parametrize(("misplaced_bytes", "gap_bytes"), [(0, 0), (0, 64), (16, 0), (0, 16)])
@pytest.mark.parametrize("variant", ["streamed, three threads", "sanitised"])
def test_keys_of_256_bytes_in_cells_of_512_come_out_transposed(
    variant: str,
    misplaced_bytes: int,
    gap_bytes: int,
    element: int,
    num_tokens: int,
    library: Callable[[str], Path],
) -> None:
    """Where all pages begin on lines, these leave the processor's registers as lines."""
    dim, half, page = 256 // element, num_tokens * 256, num_tokens * 512
    src = torch.randint(256, (8, num_tokens, 512), dtype=torch.uint8)
    dst = torch.zeros(64 + 8 * (half + gap_bytes), dtype=torch.uint8)
    first = (misplaced_bytes - dst.data_ptr()) % 64
    halves = torch.tensor([0, 4])
    dst_offsets, src_offsets = first + halves * (half + gap_bytes), halves * page
    tile = ((num_tokens, 512, element), (dim, element, num_tokens * element))
    loops = ((4, page, half + gap_bytes),)
    kernels = CpuKernels(threads=3, library=library(variant))
    kernels.transpose_pages(dst, src.view(-1), dst_offsets, src_offsets, element, tile, loops)
    expected = torch.zeros_like(dst)
    pages = expected[first:][: 8 * (half + gap_bytes)].view(8, -1)[:, :half]
    pages.view(8, dim, num_tokens, element).copy_(
        src[..., :256].unflatten(-1, (dim, element)).transpose(1, 2)
    )
    assert torch.equal(dst, expected)


def test_subnormal_numbers_count_where_the_process_flushes_them() -> None:
    kernels = CpuKernels(threads=1)
    src = torch.tensor([0x38], dtype=torch.uint8)  # 1.0
    dst = torch.zeros(4, dtype=torch.uint8)
    start = torch.zeros(1, dtype=torch.int64)
    scaled = Format("e4m3", "tensor", 0, 2.0**-130)
    torch.set_flush_denormal(True)
    try:
        kernels.convert_rows(dst, src, start, start, 1, (), scaled, Format("f32"), None, None)
    finally:
        torch.set_flush_denormal(False)
    assert dst.view(torch.int32).tolist() == [1 << 19]


def test_calls_from_several_threads_at_once() -> None:
    kernels = CpuKernels(threads=2)
    src = torch.arange(1 << 20, dtype=torch.int64).view(torch.uint8)
    start, size = torch.zeros(1, dtype=torch.int64), len(src)
    copies = [torch.zeros(size, dtype=torch.uint8) for _ in range(4)]

    def copy(dst: torch.Tensor) -> None:
        kernels.relayout_rows(dst, src, start, start, size, ())

    threads = [threading.Thread(target=copy, args=(dst,)) for dst in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(dst, src) for dst in copies)


def test_a_child_may_use_what_its_parent_loaded() -> None:
    kernels = CpuKernels(threads=2)
    src = torch.full((8 << 20,), 7, dtype=torch.uint8)
    dst, start = torch.zeros_like(src), torch.zeros(1, dtype=torch.int64)
    kernels.relayout_rows(dst, src, start, start, len(src), ())
    # The child leaves torch's own threads alone: they are not its.
    child = os.fork()
    if child == 0:
        status = 1
        try:
            kernels.zero_tail(dst, start, len(src), ())
            kernels.relayout_rows(dst, src, start, start, len(src), ())
            status = 0 if ctypes.string_at(dst.data_ptr(), 9) == b"\7" * 9 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (6, 3), (64, 4)])
def test_half_the_cores_at_most_four(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRANSLOAD_KERNEL_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert default_threads() == threads


def test_the_environment_sets_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSLOAD_KERNEL_THREADS", "7")
    assert CpuKernels().threads == 7


@pytest.mark.parametrize("named", ["", "0", "-1", "two", "1025", "²"])
def test_threads_that_are_no_number_are_refused(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSLOAD_KERNEL_THREADS", named)
    with pytest.raises(BadArgument, match=r"TRANSLOAD_KERNEL_THREADS: expected 1\.\.1024"):
        default_threads()


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    path = tmp_path / "torn.so"
    path.write_bytes(b"\x7fELF")
    with pytest.raises(Unsupported, match=r"remove them: .*torn\.so"):
        CpuKernels(library=path)


SHARE = """
#include <cstdio>
#include <cstdint>
#include "threads.h"
int main() {
  for (int64_t total : {int64_t{0}, int64_t{1000}, int64_t{1} << 62}) {
    for (int part = 0; part < 8; ++part) {
      const transload::Share share(total, part, 8, 64);
      std::printf("%lld %lld\\n", (long long)share.begin, (long long)share.end);
    }
  }
}
"""


def test_shares_of_the_most_bytes_do_not_overflow(tmp_path: Path) -> None:
    source = tmp_path / "share.cpp"
    source.write_text(SHARE)
    folder = Path(build.__file__).parent
    command = [*build.find_compiler(), "-std=c++17", "-pthread", f"-I{folder}"]
    subprocess.run([*command, "-o", str(tmp_path / "share"), str(source)], check=True)
    told = subprocess.run([tmp_path / "share"], capture_output=True, text=True, check=True)
    cuts = [tuple(map(int, line.split())) for line in told.stdout.splitlines()]
    for index, total in enumerate((0, 1000, 1 << 62)):
        begins, ends = zip(*cuts[8 * index : 8 * index + 8], strict=True)
        assert begins == (0, *ends[:-1])
        assert ends[-1] == total
        assert list(ends) == sorted(ends)


LARGE_ROW = """
import resource
import torch
from transload_kernels import Format, convert_rows
from transload_kernels.formats import ScalePlace
n = 1 << 26
dst, src = (torch.zeros(size, dtype=torch.uint8) for size in (n + 4, 2 * n))
start = torch.zeros(1, dtype=torch.int64)
with open("/proc/self/statm") as file:
    held = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2 * n, held + 2 * n))
of, to = Format("bf16"), Format("e4m3", "f32", n)
try:
    convert_rows(dst, src, start, start, n, (), of, to, None, ScalePlace(n, (), 4),
                 implementation="cpu")
except MemoryError as error:
    print(error)
"""


def test_out_of_memory_within_a_call_is_an_error() -> None:
    """In a child, which has a limit of its own: a scale for a row needs its numbers at once."""
    CpuKernels()
    child = subprocess.run([sys.executable, "-c", LARGE_ROW], capture_output=True, text=True)
    assert child.stdout == "cpu: out of memory within a call, which has written a part\n", (
        child.stderr
    )
