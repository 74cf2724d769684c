"""`autotune`: what a file may say, and what is measured with clocks that are numbers."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transload_kernels import autotune
from transload_kernels.autotune import Candidate, Cell, Device, Store, Table
from transload_kernels.errors import BadArgument, KernelError

GPU = Device("NVIDIA H200", "550.54.15", "0.1.0")
WIDE = Candidate("triton", (("num_threads", 1024), ("tile_units", 4096)))
CELLS = (
    Cell("relayout_rows", 512, 4096, WIDE, 1e-4),
    Cell("relayout_rows", 65536, 128, Candidate("triton"), 2e-4),
    Cell("copy_runs", 2 << 20, 128, Candidate("torch"), 0.125),
)


def document(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(autotune.encode(GPU, Table(CELLS)))
    return {**whole, **changes}


def with_cell(**changes: Any) -> bytes:
    cell = {**document()["cells"][0], **changes}
    return json.dumps(document(cells=[cell])).encode()


def test_a_saved_table_is_loaded_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "not" / "there")
    path = store.save(GPU, Table(CELLS))
    assert Store(tmp_path / "not" / "there").load(GPU).cells == CELLS
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.name.startswith("NVIDIA-H200-550.54.15-0.1.0-")


def test_the_file_is_as_documented() -> None:
    assert json.loads(autotune.encode(GPU, Table(CELLS[:1]))) == {
        "format": 1,
        "device": {"name": "NVIDIA H200", "driver": "550.54.15", "version": "0.1.0"},
        "cells": [
            {
                "op": "relayout_rows",
                "run_bytes": 512,
                "num_runs": 4096,
                "implementation": "triton",
                "parameters": {"num_threads": 1024, "tile_units": 4096},
                "seconds": 1e-4,
            }
        ],
    }


def test_devices_have_files_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    others = [
        GPU._replace(name="NVIDIA H200 NVL"),
        GPU._replace(name="NVIDIA/H200"),
        GPU._replace(driver="550.54.16"),
        GPU._replace(version="0.1.1"),
        Device("x" * 300, "", ""),
        Device("../../etc", "/", "\0"),
    ]
    paths = {store.path_of(device) for device in (GPU, *others)}
    assert len(paths) == 7
    assert {path.parent for path in paths} == {tmp_path}
    assert max(len(path.name) for path in paths) < 128
    store.save(GPU, Table(CELLS))
    assert all(store.load(other).cells == () for other in others)
    assert store.num_ignored() == 0


def test_what_was_never_measured_is_no_fault(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load(GPU).cells == ()
    assert (store.num_ignored(), store.explain()) == (0, "")


def test_a_broken_file_is_ignored_said_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    path = store.path_of(GPU)
    path.write_bytes(b'{"format": 1, "dev')
    with caplog.at_level(logging.WARNING):
        assert store.load(GPU).cells == ()
        assert store.load(GPU).cells == ()
    assert len(caplog.records) == 1
    assert f"ignored {path}: not JSON" in caplog.text
    assert store.num_ignored() == 1
    assert store.explain().startswith(f"autotune: ignored {path}: not JSON")
    assert path.read_bytes() == b'{"format": 1, "dev'


def test_a_file_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path_of(GPU).mkdir()
    assert store.load(GPU).cells == ()
    assert "directory" in store.explain()


def test_saving_mends_what_was_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path_of(GPU).write_bytes(b"")
    store.load(GPU)
    store.save(GPU, Table(CELLS))
    assert store.load(GPU).cells == CELLS
    assert store.num_ignored() == 0


def test_a_failed_save_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    path = store.save(GPU, Table(CELLS))
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        store.save(GPU, Table())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[]", "file: expected an object, got list"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (autotune.MAX_FILE_BYTES + 1), "more than 1048576 bytes"),
        (json.dumps(document(format=2)).encode(), "format: expected 1, got 2"),
        (json.dumps(document(more=1)).encode(), "file: fields missing or not known: more"),
        (json.dumps({"format": 1}).encode(), "not known: cells, device"),
        (json.dumps(document(device={})).encode(), "device: fields missing"),
        (json.dumps(document(device=GPU._replace(driver="1")._asdict())).encode(), "this is"),
        (json.dumps(document(cells={})).encode(), "cells: expected a list"),
        (json.dumps(document(cells=[0] * 4097)).encode(), "cells: expected a list of at most 4096"),
        (json.dumps(document(cells=[1])).encode(), r"cells\[0\]: expected an object"),
        (with_cell(op="rm"), r"cells\[0\]\.op: no operation is called 'rm'"),
        (with_cell(op=[]), r"cells\[0\]\.op"),
        (with_cell(run_bytes=0), r"cells\[0\]\.run_bytes: expected 1\.\."),
        (with_cell(run_bytes=1.5), r"cells\[0\]\.run_bytes"),
        (with_cell(num_runs=True), r"cells\[0\]\.num_runs"),
        (with_cell(implementation=""), r"cells\[0\]\.implementation"),
        (with_cell(implementation=3), r"cells\[0\]\.implementation"),
        (with_cell(seconds=0.0), r"cells\[0\]\.seconds"),
        (with_cell(seconds=float("nan")), r"cells\[0\]\.seconds"),
        (with_cell(seconds=float("inf")), r"cells\[0\]\.seconds"),
        (with_cell(seconds="1"), r"cells\[0\]\.seconds"),
        (with_cell(parameters=[]), r"cells\[0\]\.parameters: expected an object"),
        (with_cell(parameters={"sms": 1}), r"parameters: no parameter is called 'sms'"),
        (with_cell(parameters={"tile_units": 96}), r"tile_units: expected a power of two, got 96"),
        (with_cell(parameters={"num_threads": 2048}), r"num_threads: expected 64\.\.1024"),
        (with_cell(parameters={"num_programs": -1}), r"num_programs: expected 0\.\."),
    ],
)
def test_a_file_that_says_anything_else_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(BadArgument, match=says):
        autotune.decode(data, GPU)


def test_any_damage_is_refused_or_harmless() -> None:
    rng = random.Random(7)
    whole = autotune.encode(GPU, Table(CELLS))
    for _ in range(500):
        at = rng.randrange(len(whole))
        damaged = whole[:at] + rng.randbytes(rng.randint(0, 3)) + whole[at + rng.randint(0, 3) :]
        try:
            table = autotune.decode(damaged, GPU)
        except KernelError:
            continue
        assert all(cell.op in autotune.OPERATIONS and cell.seconds > 0 for cell in table.cells)


def test_the_nearest_cell_answers() -> None:
    table = Table(CELLS)
    assert table.best("relayout_rows", 512, 4096) == WIDE
    assert table.best("relayout_rows", 1000, 2000) == WIDE
    assert table.best("relayout_rows", 32768, 200) == Candidate("triton")


@pytest.mark.parametrize(
    ("op", "run_bytes", "num_runs"),
    [("zero_tail", 512, 4096), ("copy_runs", 512, 4096), ("relayout_rows", 1, 1)],
)
def test_nothing_is_said_far_from_what_was_measured(op: str, run_bytes: int, num_runs: int) -> None:
    assert Table(CELLS).best(op, run_bytes, num_runs) is None


def test_a_call_of_nothing_has_a_size_too() -> None:
    assert Table(CELLS).best("copy_runs", 0, 0) is None


def test_a_users_folder_follows_their_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    tail = "transload/kernels/autotune"
    assert autotune.default_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c", tail)
    assert autotune.default_folder({}) == Path("/home/someone/.cache", tail)
    assert autotune.default_folder({"XDG_CACHE_HOME": "here"}).is_absolute()


class Script:
    """A stopwatch that reads its times from lists, one for each candidate."""

    def __init__(self, times: dict[Candidate, list[float]]) -> None:
        self.times = times
        self.calls: list[Candidate] = []

    def call_of(self, candidate: Candidate, run_bytes: int, num_runs: int) -> Callable[[], object]:
        return lambda: self.calls.append(candidate)

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        return self.times[self.calls[-1]].pop(0)


def test_the_least_of_several_rounds_decides() -> None:
    slow, fast = Candidate("torch"), Candidate("triton")
    script = Script({slow: [3.0, 2.0, 2.5], fast: [9.0, 1.0, 9.0]})
    table = autotune.measure(
        "copy_runs", [(4096, 16)], [slow, fast], script.call_of, script, rounds=3
    )
    assert table.cells == (Cell("copy_runs", 4096, 16, fast, 1.0),)


def test_candidates_are_warmed_and_measured_in_turns() -> None:
    first, second = Candidate("torch"), Candidate("triton")
    script = Script({first: [1.0] * 2, second: [2.0] * 2})
    autotune.measure("copy_runs", [(1, 1)], [first, second], script.call_of, script, rounds=2)
    assert script.calls == [first, second] * 3


def test_each_size_has_a_cell() -> None:
    only = Candidate("triton")
    script = Script({only: [4.0, 3.0]})
    sizes = [(512, 10), (4096, 20)]
    table = autotune.measure("zero_tail", sizes, [only], script.call_of, script, rounds=1)
    assert [(cell.run_bytes, cell.num_runs, cell.seconds) for cell in table.cells] == [
        (512, 10, 4.0),
        (4096, 20, 3.0),
    ]
