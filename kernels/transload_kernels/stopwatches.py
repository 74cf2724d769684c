"""Clocks that `autotune.measure` and benchmarks read, and the names of what is measured."""

import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from transload_kernels.autotune import Device


class WallStopwatch:
    """Wall time, for implementations that return when they are done."""

    def seconds(self, call: Callable[[], object]) -> float:
        """See `autotune.Stopwatch`."""
        started = time.perf_counter()
        call()
        return time.perf_counter() - started


class GpuStopwatch:
    """The GPU's own time between two events on the current stream.

    Args:
        ahead: Queues work that takes the GPU longer than the CPU needs to launch a call, which
            then does not count; it may also turn out what caches hold.
    """

    def __init__(self, ahead: Callable[[], object]) -> None:
        self._ahead = ahead

    def seconds(self, call: Callable[[], object]) -> float:
        """See `autotune.Stopwatch`."""
        self._ahead()
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        before.record()
        call()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000


def device_of(device: torch.device) -> Device:
    """What measurements on a torch device are kept under."""
    if device.type == "cuda":
        return Device(torch.cuda.get_device_name(device), _driver(), _package_version())
    return Device(device.type, torch.__version__, _package_version())


def _driver() -> str:
    """The kernel module's version, where Linux says it, and that of torch's runtime."""
    module = Path(
        "/sys/module/amdgpu/version" if torch.version.hip else "/sys/module/nvidia/version"
    )
    installed = module.read_text().strip() if module.exists() else "unknown"
    return f"{installed}, runtime {torch.version.hip or torch.version.cuda}"


def _package_version() -> str:
    try:
        return version("transload")
    except PackageNotFoundError:
        return "not installed"
