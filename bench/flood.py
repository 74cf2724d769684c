"""How much longer does a plain request take while the index takes in a flood of KV events?

    python bench/flood.py [--quick]

A router with its defaults (cost, events, a tokenizer) stands in front of eight mock engines, which
answer at once; a process of its own publishes events of full caches for all of them
(`publish.py`), and another sends plain requests at random times, 50 a second (`openload.py`). The
router alone has the first core, with all its threads; everything else has the others.

Windows of each rate take turns: none, 25,000, 50,000 ... none, 25,000 ... A rate is of blocks
stored; as many are removed, one event each, and both are in the index before the window counts
as kept up with. Times are the client's, pooled over all windows of a rate, and counted from the
write of a request. The client also asks a mock engine directly, in turn with the router: what
those requests lose is the bench's own doing. CPU is the router's process.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

import msgspec

import contenders
import cputime
from contenders import BenchError
from load import quantile
from openload import Times
from publish import Sent

BENCH = pathlib.Path(__file__).parent
NUM_PREFILL = NUM_DECODE = 4
REQUESTS_PER_S = 50.0
# Blocks stored a second, and as many removed.
RATES = (0, 25_000, 50_000, 100_000, 150_000)
# 200,000 blocks a second, half of them stored and half removed.
TARGET_RATE, TARGET_RATIO = 100_000, 1.2
SETTLE_S = 1.0
DRAIN_TIMEOUT_S = 60.0


class Window(msgspec.Struct):
    """One rate for some seconds."""

    rate: int
    latencies_s: list[float]
    direct_s: list[float]
    router_cpu_s_per_s: float
    stored_per_s: float
    removed_per_s: float
    load_average: float


class Row(msgspec.Struct, frozen=True):
    """All windows of one rate; times in milliseconds, ratios over those without events."""

    rate: int
    requests: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p99_ratio: float
    p99_ratio_low: float
    p99_ratio_high: float
    direct_p99_ms: float
    stored_per_s: float
    removed_per_s: float
    router_cpu: float
    load_average: float


class Setup:
    """Everything that runs, and what the router says of its index."""

    def __init__(self, stack: ExitStack, out: pathlib.Path) -> None:
        own, *others = sorted(os.sched_getaffinity(0))
        if not others:
            raise BenchError("expected two cores, one for the router alone")
        os.sched_setaffinity(0, others)
        engines = [f"prefill-{at}" for at in range(NUM_PREFILL)]
        engines += [f"decode-{at}" for at in range(NUM_DECODE)]
        ports = [contenders.start_engine(stack, f"flood-{name}", out) for name in engines]
        self.publisher = contenders.start_publisher(stack, len(engines))
        self.port = contenders.free_port()
        command = ["taskset", "-c", str(own), str(contenders.transload_program()), "serve"]
        for name, port, endpoint in zip(engines, ports, self.publisher.endpoints, strict=True):
            command += [f"--{name.partition('-')[0]}", f"http://127.0.0.1:{port}"]
            command += ["--kv-event-endpoint", f"{name}={endpoint}"]
        command += ["--port", str(self.port), "--tokenizer", str(contenders.TOKENIZER)]
        command += ["--log-level", "warning"]
        log = out / "flood-transload.log"
        process = stack.enter_context(contenders.running(command, log))
        contenders.await_ready(process, self.port, "/readyz", log)
        self.pid = process.pid
        self.urls = [f"http://127.0.0.1:{port}" for port in (self.port, ports[-1])]
        filled = msgspec.json.decode(self.publisher.read(), type=Sent)
        self.await_applied(filled)

    def taken(self) -> tuple[int, int]:
        """Blocks stored and removed, as the index counts them."""
        _, body = contenders.fetch(self.port, "/admin/index")
        caches = json.loads(body)["caches"].values()
        stored = sum(cache["num_stored"] for cache in caches)
        return stored, sum(cache["num_removed"] for cache in caches)

    def await_applied(self, sent: Sent) -> None:
        """Wait until everything that was published is in the index."""
        deadline, wanted = (
            time.monotonic() + DRAIN_TIMEOUT_S,
            (
                sent.blocks_stored,
                sent.blocks_removed,
            ),
        )
        while self.taken() != wanted:
            if time.monotonic() > deadline:
                raise BenchError(f"expected {wanted} blocks in the index, it has {self.taken()}")
            time.sleep(0.1)

    def stream_events(self) -> dict[str, float]:
        """What happened to streams, by what: gaps, drops and the like."""
        _, body = contenders.fetch(self.port, "/metrics")
        found: dict[str, float] = {}
        for line in body.decode().splitlines():
            if line.startswith("transload_kv_stream_events_total{"):
                what, value = line.partition('what="')[2].partition('"')[0], line.split()[-1]
                found[what] = found.get(what, 0.0) + float(value)
        return found


def run_load(urls: list[str], seconds: float, first_seed: int) -> list[Times]:
    """Requests for one window, from a process of their own."""
    command = [sys.executable, str(BENCH / "openload.py"), "--urls", *urls]
    command += ["--rate", str(REQUESTS_PER_S), "--seconds", str(seconds)]
    command += ["--first-seed", str(first_seed)]
    result = subprocess.run(command, capture_output=True, timeout=seconds + 60)
    try:
        times = msgspec.json.decode(result.stdout, type=list[Times])
    except msgspec.DecodeError as error:
        raise BenchError(f"the load failed: {result.stderr.decode()[-2000:]}") from error
    faults = [fault for each in times for fault in each.faults]
    if faults:
        raise BenchError(f"{len(faults)} faults: {faults[:3]}")
    return times


def measure(setup: Setup, rate: int, seconds: float, first_seed: int) -> Window:
    """One window; afterwards nothing is on its way."""
    setup.publisher.set_rate(rate)
    time.sleep(SETTLE_S)
    before, cpu_before, began = setup.taken(), cputime.cpu_s(setup.pid), time.monotonic()
    times = run_load(setup.urls, seconds, first_seed)
    wall_s, cpu_s = time.monotonic() - began, cputime.cpu_s(setup.pid) - cpu_before
    after = setup.taken()
    setup.await_applied(setup.publisher.set_rate(0))
    stored, removed = ((now - then) / wall_s for now, then in zip(after, before, strict=True))
    router, direct = (each.latencies_s for each in times)
    return Window(rate, router, direct, cpu_s / wall_s, stored, removed, os.getloadavg()[0])


def spread(windows: list[Window], quiet: list[Window]) -> tuple[float, float]:
    """Where the ratio of the 99th percentiles lies: 5 to 95 % of samples of whole windows."""
    chance = random.Random(1)
    ratios = []
    for _ in range(500):
        picked = [pool(chance.choices(group, k=len(group))) for group in (windows, quiet)]
        ratios.append(quantile(picked[0], 0.99) / quantile(picked[1], 0.99))
    return quantile(ratios, 0.05), quantile(ratios, 0.95)


def pool(windows: list[Window]) -> list[float]:
    """All times."""
    return [latency for window in windows for latency in window.latencies_s]


def summarise(windows: list[Window]) -> list[Row]:
    """One row per rate, the quiet one first."""
    rows, quiet = [], [window for window in windows if not window.rate]
    for rate in sorted({window.rate for window in windows}):
        own = [window for window in windows if window.rate == rate]
        latencies = pool(own)
        direct = [latency for window in own for latency in window.direct_s]
        low, high = spread(own, quiet)
        rows.append(
            Row(
                rate=rate,
                requests=len(latencies),
                p50_ms=round(1e3 * quantile(latencies, 0.5), 3),
                p90_ms=round(1e3 * quantile(latencies, 0.9), 3),
                p99_ms=round(1e3 * quantile(latencies, 0.99), 3),
                p99_ratio=round(quantile(latencies, 0.99) / quantile(pool(quiet), 0.99), 3),
                p99_ratio_low=round(low, 3),
                p99_ratio_high=round(high, 3),
                direct_p99_ms=round(1e3 * quantile(direct, 0.99), 3),
                stored_per_s=round(statistics.mean(window.stored_per_s for window in own)),
                removed_per_s=round(statistics.mean(window.removed_per_s for window in own)),
                router_cpu=round(statistics.mean(window.router_cpu_s_per_s for window in own), 3),
                load_average=round(statistics.mean(window.load_average for window in own), 1),
            )
        )
    return rows


def table(rows: list[Row]) -> list[str]:
    """The lines of the table."""
    layout = "{:>8} {:>9} {:>9} {:>7} {:>8} {:>7} {:>7} {:>7} {:>6} {:>11} {:>9}"
    columns = ("rate", "stored/s", "removed/s", "CPU", "requests", "p50 ms", "p90 ms", "p99 ms")
    lines = [layout.format(*columns, "x", "(5-95 %)", "direct p99")]
    for row in rows:
        spread = f"{row.p99_ratio_low:.2f}-{row.p99_ratio_high:.2f}"
        figures = (row.rate, round(row.stored_per_s), round(row.removed_per_s), row.router_cpu)
        times = (row.requests, row.p50_ms, row.p90_ms, row.p99_ms, row.p99_ratio)
        lines.append(layout.format(*figures, *times, spread, row.direct_p99_ms))
    return lines


def run(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    seconds, rounds = (3.0, 2) if args.quick else (args.seconds, args.rounds)
    out = BENCH / "out"
    out.mkdir(exist_ok=True)
    windows: list[Window] = []
    with ExitStack() as stack:
        setup = Setup(stack, out)
        run_load(setup.urls, seconds, 1)  # warm-up, not kept
        seed = 100_000
        for at in range(rounds):
            for rate in (0, *sorted(set(args.rates) - {0})):
                windows.append(measure(setup, rate, seconds, seed))
                seed += 100_000
            print(f"round {at + 1} of {rounds}", flush=True)
        stream_events = setup.stream_events()
    rows = summarise(windows)
    print(*table(rows), sep="\n")
    print("streams:", stream_events or "nothing was lost")
    for row in rows:
        if row.rate == TARGET_RATE:
            word = "pass" if row.p99_ratio <= TARGET_RATIO else "miss"
            print(f"p99 at {2 * row.rate} blocks/s: {row.p99_ratio} of {TARGET_RATIO}: {word}")
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python bench/flood.py", *sys.argv[1:]]),
        "is_real_time": os.sched_getscheduler(0) != os.SCHED_OTHER,
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "python": platform.python_version(),
        "seconds": seconds,
        "rounds": rounds,
        "requests_per_s": REQUESTS_PER_S,
        "stream_events": stream_events,
        "rows": rows,
    }
    args.results.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def main() -> int:
    """Run the benchmark: 0 when it measured, whatever it found; 1 when it is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="short windows, two rounds")
    parser.add_argument("--rates", type=int, nargs="+", default=list(RATES), help="blocks/s")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a window")
    parser.add_argument("--rounds", type=int, default=5, help="of all rates")
    results = BENCH / "results" / "flood.json"
    parser.add_argument("--results", type=pathlib.Path, default=results, help="JSON file to write")
    try:
        run(parser.parse_args())
    except BenchError as error:
        print(f"the benchmark is broken: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
