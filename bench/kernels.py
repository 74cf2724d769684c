"""How close do the CPU's kernels come to a plain copy of the same bytes?

One thread, in CPU time of that thread, so that other work on the machine counts little (it does
count: the memory is shared). In each repeat all contenders of a case take turns, on pools of 512
MiB each, so that caches hold nothing of the next turn. A ratio is of one repeat: ours to the better
of two flat copies, glibc's `memcpy` and one run past the caches (whichever has the better median).

    python bench/kernels.py                      all sections
    python bench/kernels.py --sections gather    one of gather, relayout, transpose, convert, other
    python bench/kernels.py --threads            two threads against one, in wall time
    python bench/kernels.py --small              calls of 64 bytes to 64 KiB, beside the torch path
"""

import argparse
import datetime
import gc
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import msgspec
import torch

import kernel_cases as cases
from transload_kernels.cpu import CpuKernels
from transload_kernels.implementation import Implementation

BENCH = pathlib.Path(__file__).parent
SECTIONS: dict[str, Callable[[cases.Memory], Iterator[cases.Case]]] = {
    "gather": cases.gathers,
    "relayout": cases.relayouts,
    "transpose": cases.transposes,
    "convert": cases.conversions,
    "other": cases.others,
}
LEAST_OVER_REFERENCE = 3.0


class Rate(msgspec.Struct, frozen=True):
    """GB/s of payload: median, least and most of the repeats."""

    median: float
    lowest: float
    highest: float


class Row(msgspec.Struct, frozen=True):
    """One case.

    Attributes:
        ratio: Ours to the best flat copy, medians and spread over repeats.
        aim: Least ratio; 0: none.
    """

    section: str
    name: str
    rates: dict[str, Rate]
    ratio: Rate
    aim: float


class Results(msgspec.Struct, frozen=True):
    """All rows, and where they were measured."""

    date: str
    machine: str
    load_average: float
    torch: str
    repeats: int
    rows: list[Row]


def spread(values: list[float]) -> Rate:
    """Of repeats."""
    return Rate(statistics.median(values), min(values), max(values))


def measure(case: cases.Case, repeats: int) -> Row:
    """Payload GB/s of each contender, interleaved."""
    rates: dict[str, list[float]] = {name: [] for name in case.contenders}
    turn = 0
    for repeat in range(-1, repeats):
        for name, contender in case.contenders.items():
            turns = 1 if name in case.fewer else case.turns
            start = time.thread_time()
            for step in range(turns):
                contender(turn + step)
            spent = time.thread_time() - start
            turn += turns
            if repeat >= 0:  # The first is for pages, tables and code that nobody has touched.
                payload = case.payload * case.fewer.get(name, 1.0)
                rates[name].append(turns * payload / spent / 1e9)
    flat = max((statistics.median(rates[name]), name) for name in cases.FLAT)[1]
    ratio = spread([ours / limit for ours, limit in zip(rates["ours"], rates[flat], strict=True)])
    medians = {name: spread(values) for name, values in rates.items()}
    return Row(case.section, case.name, medians, ratio, case.aim)


def verdict(row: Row) -> str:
    """Whether the aim is met, by the median."""
    if row.section == "convert":
        times = row.rates["ours"].median / row.rates["reference"].median
        met = "met" if times >= LEAST_OVER_REFERENCE else "MISSED"
        return f"{times:,.0f}x reference, aim {LEAST_OVER_REFERENCE:.0f}x: {met}"
    if not row.aim:
        return ""
    return f"aim {row.aim:.2f}: {'met' if row.ratio.median >= row.aim else 'MISSED'}"


def line(row: Row) -> str:
    """A row of the table: rates in GB/s, the ratio with its spread."""
    rates = "  ".join(f"{name} {rate.median:6.2f}" for name, rate in row.rates.items())
    ratio = f"{row.ratio.median:.2f} ({row.ratio.lowest:.2f}-{row.ratio.highest:.2f})"
    return f"{row.name:<36} {ratio:<18} {rates}  {verdict(row)}".rstrip()


def threads_table(memory: cases.Memory, repeats: int) -> None:
    """Wall time of gathers by one and by two threads, interleaved, best of the repeats."""
    by = {count: CpuKernels(threads=count) for count in (1, 2)}
    offsets = torch.arange(64) * (1 << 20)
    print("payload KiB, GB/s of wall time by 1 and 2 threads")
    for payload in (256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20):
        count = max(1, payload >> 20)
        table, row = offsets[:count].clone(), payload // count
        best = dict.fromkeys(by, 0.0)
        for repeat in range(20 * repeats):
            step = repeat % (cases.POOL_BYTES // (64 << 20)) * (64 << 20)
            at = table + step
            for threads, kernels in by.items():
                start = time.perf_counter()
                kernels.relayout_rows(memory.dst, memory.src, at, at.flip(0), row, ())
                spent = time.perf_counter() - start
                best[threads] = max(best[threads], payload / spent / 1e9)
        print(f"{payload >> 10:>8}  {best[1]:6.2f}  {best[2]:6.2f}", flush=True)


def small_table(memory: cases.Memory, repeats: int) -> None:
    """CPU time of small calls, data in the caches, beside the torch path: what a call costs."""
    print("bytes, microseconds a call by C++ and by the torch path, medians")
    for size in (64, 4096, 65536):
        for name, call in cases.small_calls(memory, size).items():
            both: tuple[Implementation, ...] = (memory.ours, cases.TORCH)
            spent: list[list[float]] = [[], []]
            for _ in range(repeats + 1):
                for kernels, times in zip(both, spent, strict=True):
                    start = time.thread_time()
                    for _ in range(50):
                        call(kernels)
                    times.append((time.thread_time() - start) / 50 * 1e6)
            ours, torchs = (statistics.median(times[1:]) for times in spent)
            print(f"{size:>8} {name:<16} {ours:8.1f} {torchs:8.1f}", flush=True)


def machine() -> str:
    """The processor, as the kernel names it."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(named)} x {named[0]}" if named else platform.machine()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="of each case, at least 5")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="by commas")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--threads", action="store_true", help="two threads against one, no more")
    parser.add_argument("--small", action="store_true", help="small calls, no more")
    parser.add_argument("--out", type=pathlib.Path, default=BENCH / "results/kernels.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    memory = cases.Memory()
    if arguments.threads:
        threads_table(memory, arguments.repeats)
        return
    if arguments.small:
        small_table(memory, arguments.repeats)
        return
    rows = []
    gc.disable()
    with open("/proc/loadavg") as file:
        load_average = float(file.read().split()[0])
    for section in arguments.sections.split(","):
        print(f"\n{section}: ratio to the best flat copy, then payload GB/s", flush=True)
        for case in SECTIONS[section](memory):
            if arguments.only not in case.name:
                continue
            rows.append(measure(case, arguments.repeats))
            print(line(rows[-1]), flush=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    results = Results(
        date, machine(), load_average, str(torch.__version__), arguments.repeats, rows
    )
    arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


if __name__ == "__main__":
    main()
