"""`bench/kernels_gpu.py` as far as it goes without a GPU: its calls, turns, figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: its kernels were not run")

import kernels_gpu
from kernels_gpu import CASES, Case, Row, Turns
from transload_kernels import autotune, stopwatches
from transload_kernels.gpu import TritonKernels
from transload_kernels.gpu.compiled import RecordingLauncher
from transload_kernels.gpu.launch import Tuning

POOL_BYTES = 64 << 20


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels_gpu.main([]) == 0
    assert capsys.readouterr().out.startswith("no GPU here (torch ")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_calls_stay_within_the_pools_and_use_wide_accesses(case: Case) -> None:
    recorder, pool = RecordingLauncher(Tuning()), torch.empty(POOL_BYTES, dtype=torch.uint8)
    turns = Turns(case, POOL_BYTES)
    for _ in range(9):
        to, of = turns.offsets()
        assert int(to.max()) + case.dst_bytes <= POOL_BYTES
        assert int(of.max()) + case.src_bytes <= POOL_BYTES
        assert len(set(of.tolist())) == len(of) == len(to)
        assert turns.num_bytes == len(of) * case.num_bytes <= POOL_BYTES // 4
    aligned = pool[-pool.data_ptr() % 64 :]
    case.call(TritonKernels(recorder), aligned, aligned, to, of)
    widths = recorder.launches[0].constants
    assert widths.get("WIDTH", widths.get("SRC_WIDTH")) == 16


def test_turns_do_not_meet_until_the_pool_is_used_up() -> None:
    turns = Turns(kernels_gpu.gather(64 << 10), POOL_BYTES)
    used = [set(turns.offsets()[1].tolist()) for _ in range(4)]
    assert len(set.union(*used)) == sum(map(len, used)) == POOL_BYTES >> 16


def test_a_table_says_what_was_missed() -> None:
    rows = [Row("a", 0, 900.0, 1000.0, 0.9), Row("b", 0, 89.0, 100.0, 0.9), Row("c", 12, 1, 2, 0.9)]
    assert kernels_gpu.table(rows).splitlines()[2:] == [
        "| a | all | 900 | 1000 | 0.90 | 0.9 | met |",
        "| b | all | 89 | 100 | 0.89 | 0.9 | **missed** |",
        "| c | 12 | 1 | 2 | 0.50 | 0.9 |  |",
    ]


class Ticking:
    """Flat copies take 4, 8 and 4 seconds, ours between them 1, 2 and 3."""

    def __init__(self) -> None:
        self.calls = 0

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        self.calls += 1
        return [4.0, 1.0, 8.0, 2.0, 4.0, 3.0][self.calls - 1]


def test_the_least_of_the_rounds_after_the_first_counts() -> None:
    pools = (torch.zeros(POOL_BYTES, dtype=torch.uint8), torch.zeros(POOL_BYTES, dtype=torch.uint8))
    recorder = RecordingLauncher(Tuning())
    case = kernels_gpu.gather(2 << 20)
    row = kernels_gpu.measured(case, 0, TritonKernels(recorder), Ticking(), pools, rounds=2)
    assert row.flat_gb_per_s == (16 << 20) / 4 / 1e9
    assert row.gb_per_s == (16 << 20) / 2 / 1e9
    assert len(recorder.launches) == 3


def test_a_tuning_is_kept_for_rows_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = kernels_gpu.kernels_of(num_threads=256, tile_units=4096)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels_gpu, "PAYLOAD", 8 << 20)
    launched: list[Tuning] = []

    def kernels_of(**tuning: int) -> TritonKernels:
        recorder = RecordingLauncher(Tuning(**tuning))
        monkeypatch.setattr(recorder, "launch", lambda *rest: launched.append(recorder.tuning))
        return TritonKernels(recorder)

    class ByTuning:
        def seconds(self, call: Callable[[], object]) -> float:
            call()
            return 1.0 if launched[-1] == best.launcher.tuning else 2.0

    monkeypatch.setattr(kernels_gpu, "kernels_of", kernels_of)
    pools = (torch.zeros(POOL_BYTES, dtype=torch.uint8), torch.zeros(POOL_BYTES, dtype=torch.uint8))
    path = kernels_gpu.tune(pools, ByTuning())
    table = autotune.decode(path.read_bytes(), stopwatches.device_of(torch.device("cpu")))
    assert {cell.op for cell in table.cells} == {"relayout_rows", "copy_runs"}
    assert {dict(cell.best.parameters)["tile_units"] for cell in table.cells} == {4096}
    assert {dict(cell.best.parameters)["num_threads"] for cell in table.cells} == {256}
