"""Which implementation does an operation here, why, and what keeps the others from it.

**Rules.** The first implementation of the device's row in `PREFERENCE` that loads does the
operation. What failed to load is remembered, with its reason; that another does its work is said
once by a warning, counted for each call, and shown by `explain`. Who asks for one by name, or by
`TRANSLOAD_KERNELS`, gets that one or an error.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch

from transload_kernels.errors import BadArgument, BuildFailed, KernelError, Unsupported
from transload_kernels.implementation import Implementation

VARIABLE: Final = "TRANSLOAD_KERNELS"
"""One name, or several by commas in the order of preference, for machines with several devices."""

OPERATIONS: Final = (
    "copy_runs",
    "relayout_rows",
    "transpose_pages",
    "convert_rows",
    "zero_tail",
    "digest_blocks",
)

PREFERENCE: Final[dict[str, tuple[str, ...]]] = {
    "cpu": ("cpu", "torch"),
    "cuda": ("triton", "torch"),
}
"""By torch's type of device; ROCm's is `cuda`. Every other type has torch alone.

No size changes the order: `cpu` beat `torch` for each operation from 64 bytes to 64 KiB (two vCPUs
of an AMD EPYC, one thread, `python bench/kernels.py --small`), and for conversions of 32 MiB
(`--sections convert`); other large calls were compared with torch's own operations alone. `triton`
before `torch` on GPUs is not measured here.
"""

_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One implementation of the registry.

    Attributes:
        load: Makes an instance, which may take seconds; raises `Unsupported` or `BuildFailed`.
        devices: Types of device it serves; empty: all.
    """

    load: Callable[[], Implementation]
    devices: frozenset[str] = frozenset()

    def serves(self, device: torch.device) -> bool:
        """Whether it could ever work on buffers there."""
        return not self.devices or device.type in self.devices


class Choice(NamedTuple):
    """Who does an operation, and why it is them, in an operator's words."""

    name: str
    implementation: Implementation
    why: str


class Dispatch:
    """Loads implementations when they are first wanted, and counts whose work others do.

    May be used from several threads; they wait while one loads.

    Args:
        registry: Implementations by name.
        environment: Where `TRANSLOAD_KERNELS` is looked up, at each choice.
    """

    def __init__(self, registry: Mapping[str, Entry], environment: Mapping[str, str]) -> None:
        self._registry = dict(registry)
        self._environment = environment
        self._loaded: dict[str, Implementation | KernelError] = {}
        self._fallbacks: dict[str, int] = {}
        self._loading = threading.RLock()

    def renew_lock(self) -> None:
        """For a forked child, in which no thread is that might hold the lock."""
        self._loading = threading.RLock()

    def choose(
        self, op: str, device: torch.device, num_bytes: int, implementation: str | None = None
    ) -> Choice:
        """The implementation for a call; see `dispatch.choose`."""
        choice, failed = self._decide(op, device, num_bytes, implementation)
        for name in failed:
            self._fell_back(name, choice.name)
        return choice

    def explain(self, op: str, device: torch.device, num_bytes: int) -> str:
        """Several lines for an operator; see `dispatch.explain`."""
        try:
            choice, _ = self._decide(op, device, num_bytes, None)
            chosen, why = choice.name, choice.why
        except KernelError as error:
            chosen, why = "none", str(error)
        lines = [f"{op} of {num_bytes} bytes on {device}: {chosen} ({why})"]
        lines += [f"  {name}: {self._say(name, device)}" for name in self._registry]
        lines += [
            f"  calls that fell back from {name}: {n}" for name, n in self.fallbacks().items()
        ]
        return "\n".join(lines)

    def fallbacks(self) -> dict[str, int]:
        """By name: calls that it should have done, had it loaded."""
        with self._loading:
            return dict(self._fallbacks)

    def _decide(
        self, op: str, device: torch.device, num_bytes: int, asked: str | None
    ) -> tuple[Choice, list[str]]:
        """The choice, and the preferred ones that failed to load."""
        if op not in OPERATIONS:
            raise BadArgument(f"op: expected one of {', '.join(OPERATIONS)}, got {op!r}")
        if asked is not None:
            return self._by_name((asked,), device, "asked for by the caller"), []
        if named := self._environment.get(VARIABLE, "").replace(" ", ""):
            return self._by_name(tuple(named.split(",")), device, f"{VARIABLE}={named}"), []
        preference = PREFERENCE.get(device.type, ("torch",))
        failed: list[str] = []
        for name in preference:
            loaded = self._load(name)
            if isinstance(loaded, KernelError):
                failed.append(name)
                continue
            why = f"{', '.join(failed)} not available" if failed else f"preferred on {device.type}"
            return Choice(name, loaded, why), failed
        raise Unsupported(
            f"none of {', '.join(preference)} works here: {self._reasons(preference)}"
        )

    def _by_name(self, names: tuple[str, ...], device: torch.device, why: str) -> Choice:
        """The first of the names that serves the device; what it lacks is an error."""
        for name in names:
            if name not in self._registry:
                known = ", ".join(self._registry)
                raise BadArgument(f"implementation: expected one of {known}, got {name!r} ({why})")
        for name in names:
            if self._registry[name].serves(device):
                loaded = self._load(name)
                if isinstance(loaded, KernelError):
                    raise type(loaded)(f"{name} ({why}): {loaded}")
                return Choice(name, loaded, why)
        raise Unsupported(f"{', '.join(names)} ({why}): not for buffers on {device}")

    def _load(self, name: str) -> Implementation | KernelError:
        with self._loading:
            if name not in self._loaded:
                try:
                    self._loaded[name] = self._registry[name].load()
                except (Unsupported, BuildFailed) as error:
                    self._loaded[name] = error
            return self._loaded[name]

    def _fell_back(self, name: str, to: str) -> None:
        with self._loading:
            is_first = name not in self._fallbacks
            self._fallbacks[name] = self._fallbacks.get(name, 0) + 1
        if is_first:
            _log.warning(
                "kernels: %s does the work of %s, slower: %s", to, name, self._loaded[name]
            )

    def _say(self, name: str, device: torch.device) -> str:
        if not self._registry[name].serves(device):
            return f"not for buffers on {device}"
        try:
            loaded = self._load(name)
        except BadArgument as error:
            return f"not available: {error}"
        return f"not available: {loaded}" if isinstance(loaded, KernelError) else "works here"

    def _reasons(self, names: tuple[str, ...]) -> str:
        return "; ".join(f"{name}: {self._loaded[name]}" for name in names)


def _load_torch() -> Implementation:
    from transload_kernels.torch_path import TorchKernels

    return TorchKernels()


def _load_reference() -> Implementation:
    from transload_kernels.reference import ReferenceKernels

    return ReferenceKernels()


def _load_cpu() -> Implementation:
    from transload_kernels.cpu import CpuKernels

    return CpuKernels()


def _load_triton() -> Implementation:
    try:
        from transload_kernels.gpu import TritonKernels
    except ImportError as error:
        raise Unsupported(f"Triton is not installed ({error}); pip install triton") from error
    return TritonKernels()


def registry(environment: Mapping[str, str]) -> dict[str, Entry]:
    """All implementations; Triton serves the CPU's buffers only where it is interpreted."""
    interpreted = environment.get("TRITON_INTERPRET") == "1"
    return {
        "cpu": Entry(_load_cpu, frozenset({"cpu"})),
        "triton": Entry(_load_triton, frozenset({"cpu"} if interpreted else {"cuda"})),
        "torch": Entry(_load_torch),
        "reference": Entry(_load_reference, frozenset({"cpu"})),
    }


_of_this_process: Final = Dispatch(registry(os.environ), os.environ)
os.register_at_fork(after_in_child=_of_this_process.renew_lock)


def choose(
    op: str, device: torch.device, num_bytes: int, implementation: str | None = None
) -> Choice:
    """The implementation for one call.

    The first choice in a process may load libraries, or compile the C++ kernels for some seconds.

    Args:
        op: Name of the operation.
        device: Where the buffers are.
        num_bytes: That the call writes, or reads where it writes none.
        implementation: Name of the one to use, whatever is preferred.

    Raises:
        BadArgument: No such operation or implementation.
        Unsupported: None works here, or not the one asked for.
        BuildFailed: The one asked for could not be compiled.
    """
    return _of_this_process.choose(op, device, num_bytes, implementation)


def explain(op: str, device: torch.device | str, num_bytes: int) -> str:
    """What `choose` would choose and why, and what keeps the others from it; several lines.

    Loads every implementation that serves the device.

    Raises:
        BadArgument: There is no such operation or device.
    """
    if op not in OPERATIONS:
        raise BadArgument(f"op: expected one of {', '.join(OPERATIONS)}, got {op!r}")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise BadArgument(f"device: {error}") from None
    return _of_this_process.explain(op, device, num_bytes)


def fallbacks() -> dict[str, int]:
    """By name of an implementation that is not available: calls that another one did for it."""
    return _of_this_process.fallbacks()
