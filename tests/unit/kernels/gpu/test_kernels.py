"""`gpu.kernels`: what is launched for a call, seen by a launcher that only writes it down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: its kernels were not run")

from transload_kernels import autotune, stopwatches
from transload_kernels.autotune import Candidate
from transload_kernels.errors import Unsupported
from transload_kernels.formats import Format, ScalePlace
from transload_kernels.gpu import TritonKernels, conversion
from transload_kernels.gpu.compiled import RecordingLauncher
from transload_kernels.gpu.launch import Tuning
from transload_kernels.gpu.launcher import TritonLauncher, options_of

MEMORY = torch.empty((4 << 20) + 64, dtype=torch.uint8)
POOL = MEMORY[-MEMORY.data_ptr() % 64 :]
AT = torch.arange(16) * 65536


@pytest.fixture
def recorder() -> RecordingLauncher:
    return RecordingLauncher(Tuning())


def constants(recorder: RecordingLauncher, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(made.constants[name] for name in names) for made in recorder.launches]


def odd(at: Tensor, index: int, by: int) -> Tensor:
    moved = at.clone()
    moved[index] += by
    return moved


@pytest.mark.parametrize(
    ("width", "dst", "src", "row_bytes", "loops"),
    [
        (16, AT, AT, 512, ((8, 1024, 2048),)),
        (8, odd(AT, 9, 8), AT, 512, ((8, 1024, 2048),)),
        (4, AT, odd(AT, 15, 4), 512, ((8, 1024, 2048),)),
        (8, AT, AT, 584, ((8, 584, 592),)),
        (2, AT, AT, 134, ((8, 134, 1024),)),
        (1, AT, AT, 512, ((8, 1024, 2049),)),
        (8, AT, AT, 24, ((8, 64, 32),)),
        (16, AT, AT, 1000, ((8, 1024, 2048),)),
    ],
)
def test_rows_are_as_wide_as_every_address_allows(
    recorder: RecordingLauncher,
    width: int,
    dst: Tensor,
    src: Tensor,
    row_bytes: int,
    loops: tuple[tuple[int, int, int], ...],
) -> None:
    TritonKernels(recorder).relayout_rows(POOL, POOL, dst, src, row_bytes, loops)
    assert constants(recorder, "WIDTH", "HAS_TAIL") == [(width, row_bytes % width != 0)]


def test_a_buffer_that_is_off_narrows_too(recorder: RecordingLauncher) -> None:
    TritonKernels(recorder).relayout_rows(POOL[4:], POOL, AT[:8], AT[:8], 512, ())
    assert constants(recorder, "WIDTH") == [(4,)]


def test_rows_that_lie_together_are_one(recorder: RecordingLauncher) -> None:
    TritonKernels(recorder).relayout_rows(POOL, POOL, AT, AT, 512, ((4, 4096, 4096), (8, 512, 512)))
    assert recorder.launches[0].arguments[6] == 16384
    assert constants(recorder, "LOOPS") == [(0,)]


def lengths(launch_arguments: Sequence[Any]) -> list[int]:
    return list(launch_arguments[4].tolist())


def test_runs_are_launched_by_width_and_length(recorder: RecordingLauncher) -> None:
    runs = [
        [0, 0, 0, 0, 64],
        [0, 4096, 0, 8192, 128],
        [0, 10001, 0, 7, 64],
        [0, 65536, 0, 0, 65536],
    ]
    TritonKernels(recorder).copy_runs([POOL], [POOL], torch.tensor(runs))
    assert constants(recorder, "WIDTH") == [(1,), (16,), (16,)]
    assert [lengths(made.arguments) for made in recorder.launches] == [[64], [64, 128], [65536]]


def test_long_runs_are_cut(recorder: RecordingLauncher) -> None:
    runs = torch.tensor([[0, 0, 0, 16, (3 << 20) + 5], [0, 3 << 20 | 32, 0, 0, 1 << 19]])
    TritonKernels(recorder).copy_runs([POOL], [POOL], runs)
    everything = [lengths(made.arguments) for made in recorder.launches]
    assert sum(map(sum, everything)) == (3 << 20) + 5 + (1 << 19)
    assert max(map(max, everything)) == 1 << 20


def test_pools_are_reached_from_the_first_one(recorder: RecordingLauncher) -> None:
    other = torch.empty(4096, dtype=torch.uint8)
    TritonKernels(recorder).copy_runs([POOL, other], [POOL], torch.tensor([[1, 5, 0, 0, 8]]))
    arguments = recorder.launches[0].arguments
    assert arguments[0].data_ptr() == POOL.data_ptr()
    assert POOL.data_ptr() + int(arguments[2][0]) == other.data_ptr() + 5


@pytest.mark.parametrize(
    ("tile", "at", "src_width", "dst_width"),
    [
        (((128, 32, 2), (16, 2, 512)), AT, 16, 16),
        (((16, 2, 512), (128, 32, 2)), AT, 16, 16),
        (((128, 32, 2), (12, 2, 512)), AT, 8, 16),
        (((128, 34, 2), (16, 2, 512)), AT, 2, 16),
        (((128, 32, 2), (16, 2, 512)), odd(AT, 3, 4), 4, 4),
        (((128, 32, 4), (16, 2, 512)), AT, 16, 2),
        (((127, 32, 2), (16, 2, 512)), AT, 16, 2),
    ],
)
def test_tiles_have_a_width_for_each_side(
    recorder: RecordingLauncher,
    tile: tuple[tuple[int, int, int], tuple[int, int, int]],
    at: Tensor,
    src_width: int,
    dst_width: int,
) -> None:
    TritonKernels(recorder).transpose_pages(POOL, POOL, at, at, 2, tile, ((4, 8192, 8192),))
    assert constants(recorder, "SRC_WIDTH", "DST_WIDTH") == [(src_width, dst_width)]


def test_a_tile_with_one_fast_axis_is_rows(recorder: RecordingLauncher) -> None:
    tile = ((16, 512, 256), (8, 2, 2))
    TritonKernels(recorder).transpose_pages(POOL, POOL, AT, AT, 2, tile, ())
    assert constants(recorder, "WIDTH", "COLS") == [(16, 1)]


def test_elements_that_are_off_are_taken_apart(recorder: RecordingLauncher) -> None:
    tile = ((16, 4, 64), (16, 64, 4))
    TritonKernels(recorder).transpose_pages(POOL, POOL, odd(AT, 1, 2), AT, 4, tile, ())
    assert constants(recorder, "ELEMENT_BYTES", "LOOPS") == [(2, 2)]


@pytest.mark.parametrize(
    ("src_at", "delta", "stride", "group_stride", "is_aligned"),
    [
        (AT, 512, 656, 4, True),
        (AT, 514, 656, 4, False),
        (AT, 512, 657, 4, False),
        (AT, 512, 656, 6, False),
        (odd(AT, 2, 2), 512, 656, 4, False),
    ],
)
def test_scales_are_read_whole_where_all_are_aligned(
    recorder: RecordingLauncher,
    src_at: Tensor,
    delta: int,
    stride: int,
    group_stride: int,
    is_aligned: bool,
) -> None:
    place = ScalePlace(delta, (stride,), group_stride)
    TritonKernels(recorder).convert_rows(
        *(POOL, POOL, AT, src_at, 512, ((8, 656, 1152),), Format("e4m3", "f32", 128)),
        *(Format("bf16"), place, None),
    )
    assert constants(recorder, "ALIGNED_SCALES") == [(is_aligned,)]


def test_a_scale_for_too_many_elements_is_refused(recorder: RecordingLauncher) -> None:
    num_elements = 2 * conversion.MAX_GROUP
    with pytest.raises(Unsupported, match="one scale for 32768 elements, at most 16384"):
        TritonKernels(recorder).convert_rows(
            *(POOL, POOL, AT[:1], AT[:1], num_elements, (), Format("bf16")),
            *(Format("i8", "f32", num_elements), None, ScalePlace(num_elements, (), 4)),
        )
    assert not recorder.launches


def test_scales_for_odd_groups_of_half_bytes_are_refused(recorder: RecordingLauncher) -> None:
    with pytest.raises(Unsupported, match="one scale for 3 elements of u4, not even"):
        TritonKernels(recorder).convert_rows(
            *(POOL, POOL, AT[:1], AT[:1], 6, (), Format("bf16")),
            *(Format("u4", "f32_zero4", 3), None, ScalePlace(3, (), 4)),
        )
    assert not recorder.launches


def test_a_digest_of_too_many_loops_is_refused(recorder: RecordingLauncher) -> None:
    loops = ((2, 30000), (3, 8200), (2, 4096), (3, 1000), (2, 64))
    with pytest.raises(Unsupported, match="digest over 5 loops"):
        TritonKernels(recorder).digest_blocks(POOL, AT[:2], 8, loops)


@pytest.mark.parametrize("capped_at", [1, 7, 12])
def test_no_launch_has_more_programs_than_the_cap(
    capped_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[int] = []
    recorder = RecordingLauncher(Tuning(num_programs=capped_at))
    monkeypatch.setattr(recorder, "launch", lambda kernel, number, *rest: programs.append(number))
    made = TritonKernels(recorder)
    made.relayout_rows(POOL, POOL, AT, AT, 512, ((100, 512, 544),))
    made.relayout_rows(POOL, POOL, AT[:1], AT[:1], 512, ())
    made.transpose_pages(POOL, POOL, AT, AT, 2, ((64, 128, 2), (64, 2, 128)), ((8, 8192, 8192),))
    made.convert_rows(POOL, POOL, AT, AT, 30000, (), Format("i8"), Format("bf16"), None, None)
    made.digest_blocks(POOL, AT, 65536, ())
    assert programs == [capped_at, 1, capped_at, capped_at, capped_at, 1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, so there is one to use")
def test_without_a_gpu_a_launch_is_refused() -> None:
    with pytest.raises(Unsupported, match="buffers are on cpu; a GPU is needed"):
        TritonKernels().zero_tail(POOL, AT, 16, ())


def test_warps_follow_the_gpus_width() -> None:
    assert options_of(Tuning(num_threads=512), 32)["num_warps"] == 16
    assert options_of(Tuning(num_threads=512), 64)["num_warps"] == 8
    assert not options_of(Tuning(), 32)["enable_fp_fusion"]


BETTER = {
    512: Candidate("triton", (("num_programs", 99), ("tile_units", 4096))),
    4096: Candidate("torch"),
}


def best(op: str, run_bytes: int, num_runs: int) -> Candidate | None:
    assert (op, num_runs) == ("relayout_rows", 48)
    return BETTER.get(run_bytes)


@pytest.mark.parametrize(
    ("held", "run_bytes", "expected"),
    [
        (frozenset(), 512, Tuning(99, 4096)),
        (frozenset({"num_programs"}), 512, Tuning(12, 4096)),
        (frozenset(), 4096, Tuning()),
        (frozenset(), 8, Tuning()),
    ],
)
def test_what_was_measured_best_tunes_a_launch(
    held: frozenset[str], run_bytes: int, expected: Tuning
) -> None:
    launcher = TritonLauncher(Tuning(), best, held)
    assert launcher.tuned("relayout_rows", run_bytes, 48).tuning == expected


def test_kernels_ask_what_was_measured_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []
    recorder = RecordingLauncher(Tuning())

    def tuned(*size: Any) -> RecordingLauncher:
        asked.append(size)
        return recorder

    monkeypatch.setattr(recorder, "tuned", tuned)
    made = TritonKernels(recorder)
    made.copy_runs([POOL], [POOL], torch.tensor([[0, 0, 0, 64, 32], [0, 32, 0, 64, 16]]))
    made.relayout_rows(POOL, POOL, AT, AT, 512, ((3, 512, 544), (2, 4096, 4096)))
    made.digest_blocks(POOL, AT, 64, ((2, 128),))
    assert asked == [("copy_runs", 32, 2), ("relayout_rows", 512, 96), ("digest_blocks", 64, 32)]


DEVICE = autotune.Device("a GPU", "1", "2")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> autotune.Store:
    """Of a machine with a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(stopwatches, "device_of", lambda where: DEVICE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return autotune.Store(autotune.default_folder({"XDG_CACHE_HOME": str(tmp_path)}))


def test_a_gpus_file_is_read_and_the_operators_cap_holds(
    store: autotune.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = autotune.Cell("zero_tail", 64, 8, BETTER[512], 1.0)
    store.save(DEVICE, autotune.Table([cell]))
    assert TritonKernels().launcher.tuned("zero_tail", 64, 8).tuning == Tuning(99, 4096)
    monkeypatch.setenv("TRANSLOAD_KERNELS_SMS", "4")
    made = TritonKernels()
    assert made.launcher.tuned("zero_tail", 64, 8).tuning == Tuning(4, 4096)
    assert made.explain() == "triton: programs of a launch: at most 4 (TRANSLOAD_KERNELS_SMS)"


def test_a_broken_file_is_told_to_who_asks(store: autotune.Store) -> None:
    store.save(DEVICE, autotune.Table()).write_bytes(b"{")
    made = TritonKernels()
    assert made.launcher.tuned("zero_tail", 64, 8).tuning == Tuning()
    assert made.explain().splitlines()[1].startswith("autotune: ignored ")
