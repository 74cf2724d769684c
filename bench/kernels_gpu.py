"""Bandwidth of the kernels on the GPU that is here, beside a flat copy of as many bytes.

Each call moves another part of pools much larger than the GPU's caches; flat copies and ours take
turns, and the least of several rounds counts, in the GPU's own time: each is queued while the GPU
still fills a pool, so that what the CPU needs to launch does not count. A ratio is ours over flat;
of conversions the mean of bytes read and written is what is moved. Calls are measured with the cap
on programs that serving uses, and with the whole GPU. Without a GPU it says so and ends.

Usage: ``python bench/kernels_gpu.py [--rounds N] [--pool-gib N] [--tune]``. With ``--tune`` it also
measures tunings of gathers and rows, and writes what was best to the user's cache, for later calls.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from transload_kernels import autotune, stopwatches
from transload_kernels.formats import Format, ScalePlace
from transload_kernels.gpu import TritonKernels
from transload_kernels.gpu.launch import Tuning
from transload_kernels.gpu.launcher import TritonLauncher
from transload_kernels.implementation import Implementation

RESULTS = pathlib.Path(__file__).resolve().parent / "results" / "kernels_gpu.json"

PAYLOAD: Final = 256 << 20
"""Bytes of a call: 128 blocks of 2 MiB, a prompt of some thousand tokens."""

CAPS: Final = (12, 0)
"""Programs of a launch: as when serving, and the whole GPU."""

TUNE_RUN_BYTES: Final = (512, 4096, 65536, 2 << 20)
TUNE_UNITS: Final = (1024, 2048, 4096)
TUNE_THREADS: Final = (256, 512, 1024)


class Case(NamedTuple):
    """A call to measure.

    Attributes:
        name: Of the row.
        aim: Least ratio to the flat copy, with the whole GPU.
        src_bytes, dst_bytes: From one offset to the next on either side.
        num_bytes: That a call reads and writes for each offset, halved.
        call: Moves from and to offsets.
    """

    name: str
    aim: float
    src_bytes: int
    dst_bytes: int
    num_bytes: int
    call: Callable[[Implementation, Tensor, Tensor, Tensor, Tensor], object]


def gather(block_bytes: int) -> Case:
    """Whole blocks to where they lie together."""

    def call(kernels: Implementation, dst: Tensor, src: Tensor, to: Tensor, of: Tensor) -> None:
        zeros = torch.zeros_like(to)
        runs = torch.stack([zeros, to, zeros, of, zeros + block_bytes], dim=1)
        kernels.copy_runs([dst], [src], runs)

    name = f"gather, blocks of {block_bytes >> 10} KiB"
    return Case(name, 0.90, block_bytes, block_bytes, block_bytes, call)


PAGE: Final = 65536

CASES: Final = (
    gather(2 << 20),
    gather(64 << 10),
    Case(
        *("NHD to HND, rows of 512 bytes", 0.85, PAGE, PAGE, PAGE),
        lambda k, dst, src, to, of: k.relayout_rows(
            dst, src, to, of, 512, ((8, 512, 8192), (16, 4096, 512))
        ),
    ),
    Case(
        *("K transposed, 16 tokens, bf16", 0.75, PAGE, PAGE, PAGE // 2),
        lambda k, dst, src, to, of: k.transpose_pages(
            dst, src, to, of, 2, ((128, 32, 2), (16, 2, 512)), ((8, 8192, 8192),)
        ),
    ),
    Case(
        *("656-byte tokens to bf16", 0.75, 64 * 656, 64 * 1152, 64 * (528 + 1024) // 2),
        lambda k, dst, src, to, of: k.convert_rows(
            *(dst, src, to, of, 512, ((64, 656, 1152),), Format("e4m3", "f32", 128)),
            *(Format("bf16"), ScalePlace(512, (656,), 4), None),
        ),
    ),
    Case(
        *("fp8 per tensor to bf16", 0.75, PAGE // 2, PAGE, PAGE * 3 // 4),
        lambda k, dst, src, to, of: k.convert_rows(
            *(dst, src, to, of, PAGE // 2, (), Format("e4m3", "tensor", 0, 0.5), Format("bf16")),
            *(None, None),
        ),
    ),
    Case(
        *("digest of 2 MiB blocks", 0.0, 2 << 20, 2 << 20, 1 << 20),
        lambda k, dst, src, to, of: k.digest_blocks(src, of, 2 << 20, ()),
    ),
)


class Row(NamedTuple):
    """What was measured.

    Attributes:
        name: Of the case.
        cap: On programs; 0: none.
        gb_per_s: Payload, 1e9 bytes.
        flat_gb_per_s: Of a flat copy of as many bytes in the same rounds.
        aim: Of their ratio, for the whole GPU.
    """

    name: str
    cap: int
    gb_per_s: float
    flat_gb_per_s: float
    aim: float

    @property
    def ratio(self) -> float:
        """Ours over flat."""
        return self.gb_per_s / self.flat_gb_per_s

    def verdict(self) -> str:
        """Whether the aim was met; aims are for the whole GPU."""
        if self.cap or not self.aim:
            return ""
        return "met" if self.ratio >= self.aim else "**missed**"


class Turns:
    """Offsets for one call after the other, of parts of the pools that no call before it used."""

    def __init__(self, case: Case, pool_bytes: int) -> None:
        self._case = case
        self._num_offsets = max(min(PAYLOAD, pool_bytes // 4) // case.num_bytes, 1)
        self._slots = pool_bytes // max(case.src_bytes, case.dst_bytes)
        self._rng = random.Random(1)
        self._ids: list[int] = []

    @property
    def num_bytes(self) -> int:
        """That a call moves."""
        return self._num_offsets * self._case.num_bytes

    def offsets(self) -> tuple[Tensor, Tensor]:
        """Of the destination, in order, and of the source, in none."""
        if len(self._ids) < self._num_offsets:
            self._ids = self._rng.sample(range(self._slots), self._slots)
        taken, self._ids = self._ids[: self._num_offsets], self._ids[self._num_offsets :]
        to = torch.arange(self._num_offsets) * self._case.dst_bytes
        return to, torch.tensor(taken) * self._case.src_bytes


def measured(
    case: Case,
    cap: int,
    kernels: Implementation,
    stopwatch: autotune.Stopwatch,
    pools: tuple[Tensor, Tensor],
    rounds: int,
) -> Row:
    """Best of `rounds`, flat copies and ours in turns; one round before, to compile."""
    dst, src = pools
    turns = Turns(case, len(src))
    ours: list[float] = []
    flat: list[float] = []
    for turn in range(rounds + 1):
        at = turn % 2 * (len(src) // 2)
        part = slice(at, at + turns.num_bytes)
        to, of = turns.offsets()
        flat.append(stopwatch.seconds(partial(dst[part].copy_, src[part])))
        ours.append(stopwatch.seconds(partial(case.call, kernels, dst, src, to, of)))
    rate, flat_rate = (turns.num_bytes / min(times[1:]) / 1e9 for times in (ours, flat))
    return Row(case.name, cap, rate, flat_rate, case.aim)


def kernels_of(**tuning: int) -> TritonKernels:
    """Triton's kernels with a tuning that no measurement changes."""
    return TritonKernels(TritonLauncher(Tuning(**tuning)))


def tune(pools: tuple[Tensor, Tensor], stopwatch: autotune.Stopwatch) -> pathlib.Path:
    """Measure tunings of rows, with the cap of serving, for rows and runs; where it was written."""
    dst, src = pools
    candidates = [
        autotune.Candidate("triton", (("num_threads", threads), ("tile_units", units)))
        for threads in TUNE_THREADS
        for units in TUNE_UNITS
    ]

    def call_of(
        candidate: autotune.Candidate, run_bytes: int, num_runs: int
    ) -> Callable[[], object]:
        kernels = kernels_of(**dict(candidate.parameters))
        order = random.Random(run_bytes).sample(range(len(src) // run_bytes), num_runs)
        at = (torch.arange(num_runs) * run_bytes, torch.tensor(order) * run_bytes)
        return lambda: kernels.relayout_rows(dst, src, *at, run_bytes, ())

    sizes = [(run_bytes, PAYLOAD // run_bytes) for run_bytes in TUNE_RUN_BYTES]
    rows = autotune.measure("relayout_rows", sizes, candidates, call_of, stopwatch).cells
    cells = (*rows, *(cell._replace(op="copy_runs") for cell in rows))
    store = autotune.Store(autotune.default_folder(os.environ))
    return store.save(stopwatches.device_of(src.device), autotune.Table(cells))


def table(rows: Iterable[Row]) -> str:
    """Markdown."""
    lines = [
        "| call | programs | GB/s | flat GB/s | ratio | aim | |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.cap or 'all'} | {row.gb_per_s:.0f} | {row.flat_gb_per_s:.0f}"
        f" | {row.ratio:.2f} | {row.aim or '-'} | {row.verdict()} |"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the status to exit with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="least of so many (20)")
    parser.add_argument("--pool-gib", type=int, default=4, help="of each of two pools (4)")
    parser.add_argument("--tune", action="store_true", help="measure tunings, and keep the best")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"no GPU here (torch {torch.__version__}): nothing was measured")
        return 0
    pools = (
        torch.zeros(asked.pool_gib << 30, dtype=torch.uint8, device="cuda"),
        torch.ones(asked.pool_gib << 30, dtype=torch.uint8, device="cuda"),
    )
    stopwatch = stopwatches.GpuStopwatch(lambda: pools[0].fill_(1))
    rows = [
        measured(case, cap, kernels_of(num_programs=cap), stopwatch, pools, asked.rounds)
        for case in CASES
        for cap in CAPS
    ]
    device = stopwatches.device_of(pools[0].device)
    print(f"{device.name}, driver {device.driver}, torch {torch.__version__}\n\n{table(rows)}")
    write(rows, device, asked.rounds)
    if asked.tune:
        print(f"\ntunings: {tune(pools, stopwatch)}")
    return 0


def write(rows: Sequence[Row], device: autotune.Device, rounds: int) -> None:
    """Keep the figures with what they were measured on."""
    whole: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "device": device._asdict(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rounds": rounds,
        "payload_bytes": PAYLOAD,
        "rows": [{**row._asdict(), "ratio": row.ratio} for row in rows],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
