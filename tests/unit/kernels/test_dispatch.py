"""Who is chosen, what is said of those who are not, and that nobody falls back in silence."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import pytest
import torch

from transload_kernels import dispatch
from transload_kernels.dispatch import Dispatch, Entry
from transload_kernels.errors import BadArgument, BuildFailed, Unsupported
from transload_kernels.implementation import Implementation
from transload_kernels.reference import ReferenceKernels

CPU, CUDA, OTHER = (torch.device(name) for name in ("cpu", "cuda", "mps"))
INSTANCE = ReferenceKernels()


class Loads:
    """Loaders that count, and fail where they are told to."""

    def __init__(self, **failures: Exception) -> None:
        self.failures = failures
        self.counts: dict[str, int] = {}

    def of(self, name: str) -> Callable[[], Implementation]:
        def load() -> Implementation:
            self.counts[name] = self.counts.get(name, 0) + 1
            if name in self.failures:
                raise self.failures[name]
            return INSTANCE

        return load

    def dispatch(self, **environment: str) -> Dispatch:
        devices = {"cpu": {"cpu"}, "triton": {"cuda"}, "torch": set[str](), "reference": {"cpu"}}
        registry = {name: Entry(self.of(name), frozenset(of)) for name, of in devices.items()}
        return Dispatch(registry, environment)


@pytest.mark.parametrize(
    ("device", "name"), [(CPU, "cpu"), (CUDA, "triton"), (OTHER, "torch")], ids=str
)
def test_the_first_of_the_devices_row_is_chosen(device: torch.device, name: str) -> None:
    choice = Loads().dispatch().choose("copy_runs", device, 1)
    assert (choice.name, choice.implementation) == (name, INSTANCE)


def test_implementations_load_once_and_only_when_wanted() -> None:
    loads = Loads()
    chooser = loads.dispatch()
    for _ in range(3):
        chooser.choose("zero_tail", CPU, 1)
    assert loads.counts == {"cpu": 1}


@pytest.mark.parametrize("error", [Unsupported("no C++ compiler"), BuildFailed("cc said no")])
def test_a_fallback_warns_once_counts_each_and_is_explained(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    loads = Loads(cpu=error)
    chooser = loads.dispatch()
    with caplog.at_level(logging.WARNING):
        names = [chooser.choose("copy_runs", CPU, 1).name for _ in range(3)]
    assert names == ["torch"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"kernels: torch does the work of cpu, slower: {error}"
    ]
    assert chooser.fallbacks() == {"cpu": 3}
    assert loads.counts == {"cpu": 1, "torch": 1}
    assert chooser.explain("copy_runs", CPU, 64).splitlines() == [
        "copy_runs of 64 bytes on cpu: torch (cpu not available)",
        f"  cpu: not available: {error}",
        "  triton: not for buffers on cpu",
        "  torch: works here",
        "  reference: works here",
        "  calls that fell back from cpu: 3",
    ]


def test_explaining_is_no_call() -> None:
    chooser = Loads(cpu=Unsupported("no")).dispatch()
    chooser.explain("copy_runs", CPU, 64)
    assert chooser.fallbacks() == {}


def test_an_error_of_another_kind_is_not_a_fallback() -> None:
    chooser = Loads(cpu=BadArgument("TRANSLOAD_KERNEL_THREADS: expected 1..1024")).dispatch()
    with pytest.raises(BadArgument, match="TRANSLOAD_KERNEL_THREADS"):
        chooser.choose("copy_runs", CPU, 1)
    why = "TRANSLOAD_KERNEL_THREADS: expected 1..1024"
    assert chooser.explain("copy_runs", CPU, 1).splitlines()[:2] == [
        f"copy_runs of 1 bytes on cpu: none ({why})",
        f"  cpu: not available: {why}",
    ]


def test_who_is_asked_for_by_the_caller_comes() -> None:
    chooser = Loads().dispatch(TRANSLOAD_KERNELS="torch")
    choice = chooser.choose("copy_runs", CPU, 1, "reference")
    assert choice[::2] == ("reference", "asked for by the caller")


def test_who_is_asked_for_and_missing_is_an_error() -> None:
    chooser = Loads(cpu=BuildFailed("cc said no")).dispatch()
    with pytest.raises(BuildFailed, match=r"cpu \(asked for by the caller\): cc said no"):
        chooser.choose("copy_runs", CPU, 1, "cpu")
    assert chooser.fallbacks() == {}


def test_who_is_asked_for_on_another_device_is_an_error() -> None:
    with pytest.raises(Unsupported, match=r"triton .*: not for buffers on cpu"):
        Loads().dispatch().choose("copy_runs", CPU, 1, "triton")


def test_the_environment_prefers_by_device() -> None:
    chooser = Loads().dispatch(TRANSLOAD_KERNELS="triton, torch")
    assert chooser.choose("copy_runs", CPU, 1)[::2] == ("torch", "TRANSLOAD_KERNELS=triton,torch")
    assert chooser.choose("copy_runs", CUDA, 1).name == "triton"


def test_what_the_environment_names_is_not_replaced() -> None:
    chooser = Loads(cpu=Unsupported("no C++ compiler")).dispatch(TRANSLOAD_KERNELS="cpu")
    with pytest.raises(Unsupported, match=r"cpu \(TRANSLOAD_KERNELS=cpu\): no C"):
        chooser.choose("copy_runs", CPU, 1)
    assert "none (cpu (TRANSLOAD_KERNELS=cpu)" in chooser.explain("copy_runs", CPU, 1)


@pytest.mark.parametrize("where", ["argument", "environment"])
def test_names_that_nobody_has_are_refused(where: str) -> None:
    chooser = Loads().dispatch(**({"TRANSLOAD_KERNELS": "x"} if where == "environment" else {}))
    with pytest.raises(BadArgument, match="implementation: expected one of cpu, triton, torch"):
        chooser.choose("copy_runs", CPU, 1, "x" if where == "argument" else None)


def test_operations_that_nobody_has_are_refused() -> None:
    with pytest.raises(BadArgument, match="op: expected one of copy_runs"):
        Loads().dispatch().choose("copy", CPU, 1)


def test_where_nothing_works_every_reason_is_given() -> None:
    chooser = Loads(cpu=Unsupported("no compiler"), torch=Unsupported("no torch")).dispatch()
    with pytest.raises(Unsupported, match=r"cpu: no compiler; torch: no torch"):
        chooser.choose("copy_runs", CPU, 1)


def test_triton_serves_the_cpu_only_where_it_is_interpreted() -> None:
    assert dispatch.registry({})["triton"].devices == {"cuda"}
    assert dispatch.registry({"TRITON_INTERPRET": "1"})["triton"].devices == {"cpu"}


@pytest.mark.parametrize("name", ["cpu", "torch", "reference"])
def test_the_process_has_each_by_its_name(name: str) -> None:
    assert dispatch.choose("digest_blocks", CPU, 1, name).implementation.name == name
    assert f"{name}: works here" in dispatch.explain("digest_blocks", CPU, 1)


def test_a_child_forked_while_one_loads_does_not_wait_for_it() -> None:
    process = dispatch._of_this_process
    process.choose("copy_runs", CPU, 1, "torch")
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with process._loading:
            is_held.set()
            may_end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if process._loading.acquire(blocking=False) else 1)
    may_end.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_explain_takes_a_devices_name_and_refuses_what_is_none() -> None:
    assert "copy_runs of 1 bytes on cpu: " in dispatch.explain("copy_runs", "cpu", 1)
    with pytest.raises(BadArgument, match=r"^device: "):
        dispatch.explain("copy_runs", "nowhere", 1)
    with pytest.raises(BadArgument, match=r"^op: expected one of copy_runs"):
        dispatch.explain("foo", "cpu", 1)
