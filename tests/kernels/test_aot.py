"""Machine code of Triton's kernels for GPUs that are not here: widths, registers, spills.

Every case is compiled for a Hopper and an MI300, three for the other architectures. What is
compiled must also stand in the table of kernels/DESIGN.md.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: nothing was compiled")

import kernels_report
from transload_kernels.gpu import TritonKernels
from transload_kernels.gpu.compiled import (
    ARCHITECTURES,
    CASES,
    Case,
    Compiled,
    compile_launch,
    record,
    signature_of,
)
from transload_kernels.gpu.launch import Tuning
from transload_kernels.gpu.launcher import options_of

MAX_REGISTERS = 64
"""With 512 threads, two programs fit an SM's 65,536."""

BY_NAME = {case.name: case for case in CASES}

EVERYWHERE = (
    "gather 2 MiB blocks",
    "K transposed, 16 tokens, bf16",
    "656-byte tokens to bf16",
)

COMPILED = [
    (case.name, architecture)
    for architecture in ARCHITECTURES
    for case in CASES
    if architecture in ("sm_90", "gfx942") or case.name in EVERYWHERE
]


@cache
def compiled(name: str, architecture: str) -> Compiled:
    return compile_launch(record(BY_NAME[name]), architecture)


def widest(accesses: dict[int, int]) -> int:
    return max(accesses, default=0)


@pytest.mark.parametrize(("name", "architecture"), COMPILED)
def test_data_is_moved_in_accesses_as_wide_as_it_allows(name: str, architecture: str) -> None:
    case, made = BY_NAME[name], compiled(name, architecture)
    assert widest(made.stores) == case.store_bits
    if case.load_bits < 64:
        # Offsets are 64 bits wide, so data that is narrower does not show as the widest.
        assert not case.load_bits or case.load_bits in made.loads
    else:
        assert widest(made.loads) == case.load_bits


@pytest.mark.parametrize(("name", "architecture"), COMPILED)
def test_registers_are_few_and_nothing_is_spilled(name: str, architecture: str) -> None:
    made = compiled(name, architecture)
    assert made.registers <= MAX_REGISTERS
    assert made.spills == 0
    assert made.shared_bytes <= 48 << 10


@pytest.mark.parametrize(("name", "architecture"), COMPILED)
def test_the_table_in_the_design_is_what_the_compiler_says(name: str, architecture: str) -> None:
    document = kernels_report.DESIGN.read_text()
    assert f"Triton {version('triton')}" in document, "made with another one: make it again"
    assert kernels_report.row(name, architecture, compiled(name, architecture)) in document


def test_the_table_names_every_case_and_architecture() -> None:
    document = kernels_report.DESIGN.read_text()
    assert all(
        f"| {case.name} | {architecture} |" in document
        for case in CASES
        for architecture in ARCHITECTURES
    )


def test_the_report_replaces_its_table_alone() -> None:
    old = f"before\n{kernels_report.BEGIN}| old |\n{kernels_report.END}after\n"
    new = f"before\n{kernels_report.BEGIN}| new |\n{kernels_report.END}after\n"
    assert kernels_report.rewritten(old, "| new |\n") == new
    with pytest.raises(ValueError, match="no place"):
        kernels_report.rewritten("before\n", "| new |\n")


class NoGpu:
    """What Triton asks of a driver before it compiles for the GPU that is there."""

    def get_current_target(self) -> object:
        return ARCHITECTURES["sm_90"]

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_launch_would_take_the_code_that_was_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same code for other numbers and for memory that is less aligned."""
    made = record(BY_NAME[name])
    options = options_of(Tuning(), 32)
    monkeypatch.setattr("triton.runtime.driver._active", NoGpu())
    made.kernel.device_caches.clear()
    found = made.kernel.warmup(*made.arguments, grid=(1,), **made.constants, **options)
    variants = made.kernel.device_caches[0][0]
    before = len(variants)
    for number in (0, 1, 16, 2**40):
        others = [number if isinstance(each, int) else each for each in made.arguments]
        made.kernel.warmup(*others, grid=(1,), **made.constants, **options)
    others = [each[1:] if is_buffer(each) else each for each in made.arguments]
    made.kernel.warmup(*others, grid=(1,), **made.constants, **options)
    made.kernel.device_caches.clear()
    assert found.src.signature == signature_of(made)
    assert len(variants) == before


def is_buffer(argument: object) -> bool:
    return isinstance(argument, Tensor) and argument.dtype == torch.uint8


def test_an_address_that_is_off_is_seen_in_the_code() -> None:
    def narrower(kernels: TritonKernels, pool: Tensor, at: Tensor) -> None:
        kernels.relayout_rows(pool[4:], pool, at, at, 512, ((8, 512, 8192),))

    made = compile_launch(record(Case("off by four", narrower)), "sm_90")
    assert widest(made.stores) == 32
