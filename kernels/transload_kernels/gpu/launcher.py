# mypy: disable-error-code="import-untyped"
"""Where kernels are started: on a tensor's GPU, or by Triton's interpreter in this process."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

from transload_kernels.autotune import Candidate
from transload_kernels.errors import Unsupported
from transload_kernels.gpu.launch import Tuning

Best = Callable[[str, int, int], Candidate | None]


class Launcher(Protocol):
    """Starts kernels with one tuning; tests and reports put their own in its place."""

    tuning: Tuning

    def tuned(self, op: str, run_bytes: int, num_runs: int) -> "Launcher":
        """The launcher for a call of this size: itself, or one with what was measured best."""

    def num_programs(self, device: torch.device) -> int:
        """The most programs that a launch there should have."""

    def launch(
        self,
        kernel: Any,
        num_programs: int,
        device: torch.device,
        arguments: Sequence[Any],
        constants: Mapping[str, Any],
    ) -> None:
        """Queue `num_programs` programs on the device's current stream."""


class TritonLauncher:
    """Starts kernels on GPUs; on the CPU only where Triton interprets.

    Args:
        tuning: Of all launches for which `best` knows nothing better.
        best: Who was measured fastest, by operation, bytes of a run and number of runs.
        held: Fields of the tuning that measurements do not change.
    """

    def __init__(
        self, tuning: Tuning, best: Best | None = None, held: frozenset[str] = frozenset()
    ) -> None:
        self.tuning = tuning
        self._best = best
        self._held = held

    def tuned(self, op: str, run_bytes: int, num_runs: int) -> Launcher:
        """See `Launcher.tuned`."""
        candidate = self._best(op, run_bytes, num_runs) if self._best else None
        if candidate is None or candidate.implementation != "triton":
            return self
        better = {name: n for name, n in candidate.parameters if name not in self._held}
        return TritonLauncher(self.tuning._replace(**better))

    def num_programs(self, device: torch.device) -> int:
        """The tuning's cap; without one, two programs for each SM or compute unit."""
        if self.tuning.num_programs:
            return self.tuning.num_programs
        if device.type != "cuda":
            return 4
        return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)

    def launch(
        self,
        kernel: Any,
        num_programs: int,
        device: torch.device,
        arguments: Sequence[Any],
        constants: Mapping[str, Any],
    ) -> None:
        """See `Launcher.launch`. Raises `Unsupported` on a device that Triton cannot use here."""
        if device.type != "cuda" and not is_interpreting():
            raise Unsupported(f"triton: buffers are on {device}; a GPU is needed")
        options = options_of(self.tuning, 64 if torch.version.hip else 32)
        with _on(device):
            kernel[(num_programs,)](*arguments, **constants, **options)


def options_of(tuning: Tuning, warp_threads: int) -> dict[str, Any]:
    """What kernels are compiled with; `gpu.numbers` is wrong if sums and products are fused."""
    return {"num_warps": tuning.num_threads // warp_threads, "enable_fp_fusion": False}


def is_interpreting() -> bool:
    """Whether this process runs kernels by Triton's interpreter (TRITON_INTERPRET=1)."""
    return bool(triton.knobs.runtime.interpret)


def _on(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def sent(numbers: Tensor, device: torch.device) -> Tensor:
    """A table for a kernel: on the device, without gaps; a GPU's stream is not waited for."""
    if device.type == "cuda" and numbers.device.type == "cpu":
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True).contiguous()
