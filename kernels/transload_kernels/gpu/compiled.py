# mypy: disable-error-code="import-untyped"
"""What Triton's compilers make of the kernels, for GPUs that are not here.

Calls of the operations, in the shapes that vLLM's formats give, are recorded and not started; what
would have been started is compiled for an architecture, and the machine code is read: registers,
spills, shared memory, and how wide each access of memory is.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from transload_kernels.formats import Format, ScalePlace
from transload_kernels.gpu.kernels import TritonKernels
from transload_kernels.gpu.launch import Tuning
from transload_kernels.gpu.launcher import options_of

ARCHITECTURES: Final = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""A100, H100 and H200, B200, MI300."""

_POOL_BYTES: Final = 1 << 24


class Case(NamedTuple):
    """One call, and how its data must be read and written.

    Attributes:
        name: For tables.
        call: Calls one operation; buffer and offsets are given.
        load_bits: Width of the accesses that read data.
        store_bits: Width of those that write it; others write only scales or tails.
    """

    name: str
    call: Callable[[TritonKernels, Tensor, Tensor], object]
    load_bits: int = 128
    store_bits: int = 128


_TOKEN_656: Final = (Format("e4m3", "f32", 128), ScalePlace(512, (656,), 4))
_ROW_264: Final = (Format("i8", "f32", 128), ScalePlace(128, (4224, 264), 132))
_ROW_136: Final = (Format("u4", "f32_zero4", 128), ScalePlace(64, (2176, 136), 68))
_BF16: Final = Format("bf16")

CASES: Final = (
    Case(
        "gather 2 MiB blocks",
        lambda k, pool, at: k.copy_runs(
            [pool], [pool], torch.stack([at * 0, at, at * 0, at, at * 0 + (2 << 20)], dim=1)
        ),
    ),
    Case(
        "NHD to HND, rows of 512 bytes",
        lambda k, pool, at: k.relayout_rows(
            pool, pool, at, at, 512, ((8, 512, 8192), (16, 4096, 512))
        ),
    ),
    Case(
        "latent rows of 656 bytes, padded",
        lambda k, pool, at: k.relayout_rows(pool, pool, at, at, 656, ((64, 656, 704),)),
    ),
    Case(
        "records of 584 bytes",
        lambda k, pool, at: k.relayout_rows(pool, pool, at, at, 584, ((64, 584, 600),)),
        *(64, 64),
    ),
    Case(
        "rows of 132 bytes",
        lambda k, pool, at: k.relayout_rows(pool, pool, at, at, 132, ((64, 132, 136),)),
        *(32, 32),
    ),
    Case(
        "rows of 1000 bytes, with tails",
        lambda k, pool, at: k.relayout_rows(pool, pool, at, at, 1000, ((64, 1024, 2048),)),
    ),
    Case(
        "zeros, rows of 512 bytes",
        lambda k, pool, at: k.zero_tail(pool, at, 512, ((16, 8192),)),
        *(0, 128),
    ),
    Case(
        "K transposed, 16 tokens, bf16",
        lambda k, pool, at: k.transpose_pages(
            pool, pool, at, at, 2, ((128, 32, 2), (16, 2, 512)), ((8, 8192, 8192),)
        ),
    ),
    Case(
        "K transposed, 16 tokens, fp8",
        lambda k, pool, at: k.transpose_pages(
            pool, pool, at, at, 1, ((128, 16, 1), (16, 1, 256)), ((8, 4096, 4096),)
        ),
    ),
    Case(
        "656-byte tokens to bf16",
        lambda k, pool, at: k.convert_rows(
            *(pool, pool, at, at, 512, ((64, 656, 1152),), _TOKEN_656[0], _BF16),
            *(_TOKEN_656[1], None),
        ),
    ),
    Case(
        "bf16 to 656-byte tokens",
        lambda k, pool, at: k.convert_rows(
            *(pool, pool, at, at, 512, ((64, 1152, 656),), _BF16, _TOKEN_656[0]),
            *(None, _TOKEN_656[1]),
        ),
        *(128, 64),
    ),
    Case(
        "fp8 per tensor to bf16",
        lambda k, pool, at: k.convert_rows(
            pool, pool, at, at, 1 << 16, (), Format("e4m3", "tensor", 0, 0.5), _BF16, None, None
        ),
    ),
    Case(
        "fp8 FNUZ per tensor to bf16",
        lambda k, pool, at: k.convert_rows(
            pool, pool, at, at, 1 << 16, (), Format("e5m2fnuz", "tensor", 0, 0.5), _BF16, None, None
        ),
    ),
    Case(
        "bf16 to fp8 FNUZ per tensor",
        lambda k, pool, at: k.convert_rows(
            pool, pool, at, at, 1 << 16, (), _BF16, Format("e5m2fnuz", "tensor", 0, 0.5), None, None
        ),
        *(128, 64),
    ),
    Case(
        "int8 per token and head to bf16",
        lambda k, pool, at: k.convert_rows(
            *(pool, pool, at, at, 128, ((8, 4224, 4096), (16, 264, 256)), _ROW_264[0], _BF16),
            *(_ROW_264[1], None),
        ),
        *(64, 128),
    ),
    Case(
        "bf16 to int4 per token and head",
        lambda k, pool, at: k.convert_rows(
            *(pool, pool, at, at, 128, ((8, 4096, 2176), (16, 256, 136)), _BF16, _ROW_136[0]),
            *(None, _ROW_136[1]),
        ),
        *(128, 32),
    ),
    Case(
        "digest of 2 MiB blocks", lambda k, pool, at: k.digest_blocks(pool, at, 2 << 20, ()), 128, 0
    ),
)


class Launch(NamedTuple):
    """A launch that was not made."""

    kernel: Any
    arguments: Sequence[Any]
    constants: Mapping[str, Any]


class RecordingLauncher:
    """Remembers launches; a `Launcher`."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.launches: list[Launch] = []

    def tuned(self, op: str, run_bytes: int, num_runs: int) -> "RecordingLauncher":
        """See `Launcher`."""
        return self

    def num_programs(self, device: torch.device) -> int:
        """See `Launcher`."""
        return self.tuning.num_programs

    def launch(
        self,
        kernel: Any,
        num_programs: int,
        device: torch.device,
        arguments: Sequence[Any],
        constants: Mapping[str, Any],
    ) -> None:
        """See `Launcher`."""
        self.launches.append(Launch(kernel, arguments, constants))


class Compiled(NamedTuple):
    """What one kernel came to on one architecture.

    Attributes:
        registers: For each thread (vector registers on AMD).
        spills: Bytes of local memory (NVIDIA) or vector registers (AMD) that did not fit.
        shared_bytes: For each program.
        loads: Number of instructions that read global memory, by their bits.
        stores: Likewise that write it.
        instructions: Of the whole kernel.
    """

    registers: int
    spills: int
    shared_bytes: int
    loads: dict[int, int]
    stores: dict[int, int]
    instructions: int


def record(case: Case, tuning: Tuning | None = None) -> Launch:
    """The first launch of a case's call, over buffers and offsets that are multiples of 16."""
    launcher = RecordingLauncher(tuning or Tuning())
    memory = torch.empty(_POOL_BYTES + 256, dtype=torch.uint8)
    pool = memory[-memory.data_ptr() % 256 :]
    case.call(TritonKernels(launcher), pool, torch.arange(8) << 20)
    return launcher.launches[0]


def compile_launch(launch: Launch, architecture: str, tuning: Tuning | None = None) -> Compiled:
    """Compile a launch's kernel for an architecture of `ARCHITECTURES`, or find it in the cache."""
    gpu = ARCHITECTURES[architecture]
    source = ASTSource(launch.kernel, signature_of(launch), dict(launch.constants), {})
    made = triton.compile(source, target=gpu, options=options_of(tuning or Tuning(), gpu.warp_size))
    if gpu.backend == "cuda":
        return _of_cubin(made.asm["cubin"], made.metadata.shared)
    return _of_amdgcn(made.asm["amdgcn"], made.metadata.shared)


def signature_of(launch: Launch) -> dict[str, str]:
    """Parameter types as Triton would find them when starting the kernel."""
    arguments = iter(launch.arguments)
    types: dict[str, str] = {}
    for parameter in launch.kernel.params:
        if parameter.is_constexpr:
            types[parameter.name] = "constexpr"
            continue
        argument = next(arguments)
        types[parameter.name] = parameter.annotation_type or _pointer_type(argument)
    return types


def _pointer_type(argument: Tensor) -> str:
    return {torch.uint8: "*u8", torch.int64: "*i64"}[argument.dtype]


def _of_cubin(cubin: bytes, shared_bytes: int) -> Compiled:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _output_of(triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path))
        sass = _output_of(triton.knobs.nvidia.nvdisasm.path, "-c", str(path))
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found is not None, usage
    registers, stack, local = (int(number) for number in found.groups())
    return Compiled(
        registers,
        stack + local,
        shared_bytes,
        _widths_of_sass(sass, "LDG"),
        _widths_of_sass(sass, "STG"),
        len(re.findall(r"^\s*/\*[0-9a-f]{4,}\*/", sass, re.MULTILINE)),
    )


def _widths_of_sass(sass: str, operation: str) -> dict[int, int]:
    names = re.findall(rf"\b{operation}\.E((?:\.\w+)*)", sass)
    return _sorted(Counter(_bits_of_suffixes(name.split(".")) for name in names))


def _bits_of_suffixes(suffixes: Sequence[str]) -> int:
    """`LDG.E.128`, `.64`, `.U16`, `.U8`; 32 bits have no suffix."""
    widths = [suffix.lstrip("US") for suffix in suffixes]
    return next((int(width) for width in widths if width in ("128", "64", "16", "8")), 32)


_AMD_BITS: Final = {
    **{"dwordx4": 128, "dwordx3": 96, "dwordx2": 64, "dword": 32, "b128": 128, "b64": 64},
    **{"ushort": 16, "sshort": 16, "short": 16, "ubyte": 8, "sbyte": 8, "byte": 8},
}


def _of_amdgcn(text: str, shared_bytes: int) -> Compiled:
    def number(field: str) -> int:
        found = re.search(rf"\.{field}:\s+(\d+)", text)
        assert found is not None, field
        return int(found.group(1))

    def widths(operation: str) -> dict[int, int]:
        names = re.findall(rf"\b(?:global|buffer|flat)_{operation}_([a-z0-9]+)", text)
        return _sorted(Counter(_AMD_BITS[name] for name in names))

    return Compiled(
        number("vgpr_count"),
        number("vgpr_spill_count"),
        shared_bytes,
        widths("load"),
        widths("store"),
        len(re.findall(r"^\t[a-z]+_\w+", text, re.MULTILINE)),
    )


def _sorted(counts: Counter[int]) -> dict[int, int]:
    return dict(sorted(counts.items(), reverse=True))


def _output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
