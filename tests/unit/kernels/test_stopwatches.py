"""`stopwatches`: what is timed between which readings, and what devices are called."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch

from transload_kernels import stopwatches
from transload_kernels.autotune import Device


def test_wall_time_is_that_between_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    readings = iter([10.0, 12.5])

    def reading() -> float:
        log.append("clock")
        return next(readings)

    monkeypatch.setattr("time.perf_counter", reading)
    assert stopwatches.WallStopwatch().seconds(lambda: log.append("call")) == 2.5
    assert log == ["clock", "call", "clock"]


def test_a_gpus_time_is_that_between_two_events_behind_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, other: Event) -> float:
            return 250.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    stopwatch = stopwatches.GpuStopwatch(lambda: log.append("ahead"))
    assert stopwatch.seconds(lambda: log.append("call")) == 0.25
    assert log == ["ahead", "event", "call", "event", "wait"]


def test_a_cpu_is_known_by_torch_and_this_package() -> None:
    expected = Device("cpu", torch.__version__, version("transload"))
    assert stopwatches.device_of(torch.device("cpu")) == expected


class Modules:
    """Linux's folder of kernel modules, of which only NVIDIA's says its version."""

    def __init__(self, path: str) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path == "/sys/module/nvidia/version"

    def read_text(self) -> str:
        return "550.54.15\n"


def test_a_gpu_is_known_by_name_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(stopwatches, "Path", Modules)
    device = stopwatches.device_of(torch.device("cuda"))
    assert device == Device("NVIDIA H200", "550.54.15, runtime 13.0", version("transload"))


def test_a_driver_that_does_not_say_its_version_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "AMD Instinct MI300X")
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(stopwatches, "Path", Modules)
    device = stopwatches.device_of(torch.device("cuda"))
    assert device.driver == "unknown, runtime 7.1"
