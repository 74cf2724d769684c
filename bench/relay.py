"""What does relaying cost? Router CPU per request and per streamed event, ours beside vllm-router.

Every contender stands in front of one prefill and one decode mock engine of its own and gets the
same batches in turn (A, B, direct, A, B, direct, ...), so that the machine's moods reach all alike.

What is measured:
    - CPU is the router's process tree over one batch, connections set up and idle work included,
      nothing subtracted; each contender is warmed up first.
    - *Per request*: not streamed, 16 tokens, as fast as the connections allow.
    - *Per event*: CPU of a batch of streams over its events (one HTTP chunk each, `[DONE]` not
      counted). Streams are long, so the request's own cost, both legs, is in it and is small.
      *Paced* streams get an event every 10 ms, as from an engine, so a router has one event per
      read; *unpaced* ones get one per turn of the mock's loop, and *burst* ones 32, as from an
      engine that is faster than anything in front of it: what a chunk costs where the system
      calls are shared. `events/read` says how far they stayed apart on their way to the client.
    - A batch counts only if every answer is right and, for a router, if each request had exactly
      one prefill leg and one decode leg, whose handoffs are the ones that were issued; but
      `transload-cost` decides about the prefill leg, and `transload-alone` has none. Anything
      else ends the run with status 1. A missed target does not: it is reported.
    - Medians over the repeats; the spread is the lowest and the highest repeat.
"""

import argparse
import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
import time
from contextlib import ExitStack

import msgspec

import contenders
import cputime
from contenders import BenchError, Contender
from figures import (
    ALONE,
    COST,
    FEWEST_REPEATS,
    KINDS,
    NAMES,
    THEIRS,
    Cell,
    Sample,
    Verdict,
    compare,
    summarise,
    table,
    verdict_line,
)
from load import Plan, Report
from mock_engine import STEP_S, Stats

BENCH = pathlib.Path(__file__).parent
BATCH_TIMEOUT_S = 120.0
# Events that a stream gets at once: about 8 KB, well under one read.
BURST = 32


class Sizes(msgspec.Struct, frozen=True):
    """How large the batches are; about two seconds each on two vCPUs of an AMD EPYC."""

    requests: int = 3000
    tokens: int = 16
    paced_tokens: int = 256
    unpaced_streams: int = 64
    unpaced_tokens: int = 1000
    idle_s: float = 2.0


QUICK = Sizes(requests=300, paced_tokens=40, unpaced_tokens=200, idle_s=0.5)


def plan_cells(connections: list[int], sizes: Sizes) -> list[Cell]:
    """Every kind of batch at each number of connections."""
    plain = [Cell("plain", n, max(sizes.requests, n), sizes.tokens) for n in connections]
    paced = [Cell("paced", n, n, sizes.paced_tokens) for n in connections]
    streams, tokens = sizes.unpaced_streams, sizes.unpaced_tokens
    unpaced = [Cell("unpaced", n, max(streams, n), tokens) for n in connections]
    burst = [Cell("burst", n, max(streams, n), tokens) for n in connections]
    return plain + paced + unpaced + burst


def run_load(plan: Plan) -> Report:
    """Run one batch in a process of its own; any fault breaks the run."""
    command = [sys.executable, str(BENCH / "load.py"), "--url", plan.url]
    for name in ("connections", "requests", "tokens", "timeout_s", "first_seed"):
        command += [f"--{name.replace('_', '-')}", str(getattr(plan, name))]
    command += ["--stream"] if plan.stream else []
    result = subprocess.run(command, capture_output=True, timeout=plan.timeout_s + 30)
    try:
        report = msgspec.json.decode(result.stdout, type=Report)
    except msgspec.DecodeError as error:
        raise BenchError(f"the load failed: {result.stderr.decode()[-2000:]}") from error
    if report.num_faults or report.answers != plan.requests:
        raise BenchError(f"{report.answers} of {plan.requests} answers right: {report.faults}")
    return report


def fault_of_legs(
    before: list[Stats], after: list[Stats], requests: int, *, is_free: bool = False
) -> str | None:
    """What is wrong with the legs of one batch, or None.

    Args:
        before: the counters of the prefill engine, if any, and then of the decode engine.
        after: the same after the batch.
        requests: that the batch sent.
        is_free: whether requests may have one leg or both.
    """

    def grown(field: str) -> list[int]:
        pairs = zip(before, after, strict=True)
        return [getattr(now, field) - getattr(then, field) for then, now in pairs]

    is_alone = len(after) == 1
    both = grown("prefill_legs")[0] if is_free else requests
    expected = {
        "prefill_legs": [0] if is_alone else [both, 0],
        "decode_legs": [0] if is_alone else [0, both],
        "bare": [requests] if is_alone else [0, requests - both],
        "released": [0] * len(after),
        "rejected": [0] * len(after),
        "aborted_streams": [0] * len(after),
    }
    for field, wanted in expected.items():
        if grown(field) != wanted:
            return f"expected {field} to grow by {wanted}, it grew by {grown(field)}"
    if sum(grown("issued_digest")) % 2**64 != sum(grown("consumed_digest")) % 2**64:
        return "the handoffs that reached the decode engine are not the ones that were issued"
    return None


def engines_of(contender: Contender) -> list[Stats]:
    """The counters of a contender's engines, prefill first."""
    ports = (contender.prefill_port, contender.decode_port)
    return [contenders.engine_stats(port) for port in ports if port is not None]


def cpu_s_of(contender: Contender) -> float:
    """CPU seconds of a contender's router so far; 0 without one."""
    if contender.pid is None:
        return 0.0
    try:
        return cputime.cpu_s(contender.pid)
    except OSError as error:
        raise BenchError(f"{contender.name} is not running: {error}") from error


def measure(contender: Contender, cell: Cell, first_seed: int) -> Sample:
    """Run one batch through one contender and hold it to the rules above."""
    plan = Plan(
        url=contender.url,
        connections=cell.connections,
        requests=cell.requests,
        tokens=cell.tokens,
        stream=cell.kind != "plain",
        timeout_s=BATCH_TIMEOUT_S,
        first_seed=first_seed,
    )
    step_s = 0.0 if cell.kind in ("unpaced", "burst") else STEP_S
    burst = BURST if cell.kind == "burst" else 1
    contenders.set_pace(contender.decode_port, step_s, burst)
    before, cpu_before_s = engines_of(contender), cpu_s_of(contender)
    try:
        report = run_load(plan)
    except BenchError as error:
        raise BenchError(f"{contender.name}, {cell.connections} connections: {error}") from error
    cpu_s = cpu_s_of(contender) - cpu_before_s
    fault = fault_of_legs(before, engines_of(contender), cell.requests, is_free=contender.is_free)
    if fault is not None:
        raise BenchError(f"{contender.name}, {cell.connections} connections: {fault}")
    return Sample(
        cpu_s=cpu_s,
        requests=report.requests,
        events=report.events,
        reads=report.reads,
        wall_s=report.wall_s,
        latency_p50_s=report.latency_p50_s,
        latency_p99_s=report.latency_p99_s,
        load_average=os.getloadavg()[0],
    )


def run_cells(cells: list[Cell], field: list[Contender], repeats: int) -> None:
    """Fill the cells: all contenders in turn, `repeats` times per cell."""
    seeds = 1
    for cell in cells:
        for contender in field:  # warm-up, not kept
            measure(contender, cell, seeds)
            seeds += cell.requests
        for repeat in range(repeats):
            for contender in field:
                sample = measure(contender, cell, seeds)
                seeds += cell.requests
                cell.samples.setdefault(contender.name, []).append(sample)
            costs = (f"{n} {s[-1].cost_us(cell.kind):.1f}" for n, s in cell.samples.items())
            label = f"{cell.kind}, {cell.requests} requests over {cell.connections} connections"
            print(f"{label}, repeat {repeat + 1}/{repeats}, us: {', '.join(costs)}", flush=True)
        for name, samples in cell.samples.items():
            cell.summaries[name] = summarise(samples, cell.kind)


def idle_cpu(field: list[Contender], idle_s: float) -> dict[str, float]:
    """CPU seconds per second of each router with nothing to do."""
    before = {contender.name: cpu_s_of(contender) for contender in field}
    time.sleep(idle_s)
    return {each.name: (cpu_s_of(each) - before[each.name]) / idle_s for each in field}


def cpu_model() -> str:
    """The processor's name."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def record(
    cells: list[Cell],
    field: list[Contender],
    idle: dict[str, float],
    sizes: Sizes,
    verdicts: list[Verdict],
) -> dict[str, object]:
    """Everything a reader needs to judge the numbers or to repeat the run."""
    packages = ("uvloop", "httptools", "msgspec")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python bench/relay.py", *sys.argv[1:]]),
        "machine": {"cpu": cpu_model(), "cpus": os.cpu_count(), "kernel": platform.release()},
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
            **{each.name: each.version for each in field if each.version},
        },
        "commands": {each.name: each.command for each in field if each.command},
        "idle_cpu_s_per_s": idle,
        "step_s": STEP_S,
        "sizes": sizes,
        "cells": cells,
        "ratios": [{**msgspec.structs.asdict(each), "verdict": each.word} for each in verdicts],
    }


def run(args: argparse.Namespace) -> None:
    """The whole benchmark; raises BenchError where it is broken."""
    sizes = QUICK if args.quick else Sizes()
    repeats = args.repeats or (2 if args.quick else FEWEST_REPEATS)
    cells = plan_cells(args.connections, sizes)
    logs = BENCH / "out"
    logs.mkdir(exist_ok=True)
    with ExitStack() as stack:
        field = [contenders.start(stack, name, logs) for name in args.contenders]
        idle = idle_cpu(field, sizes.idle_s)
        run_cells(cells, field, repeats)
    found = [compare(cell, theirs) for theirs in THEIRS for cell in cells]
    found += [compare(cell, ALONE, COST) for cell in cells]
    verdicts = [verdict for verdict in found if verdict is not None]
    for kind in KINDS:
        print("", *table([cell for cell in cells if cell.kind == kind], kind), sep="\n")
    print()
    for name, share in idle.items():
        print(f"{name}: idle, {share * 1e3:.2f} ms of CPU per second")
    for verdict in verdicts:
        print(verdict_line(verdict, repeats))
    args.results.parent.mkdir(parents=True, exist_ok=True)
    result = msgspec.json.encode(record(cells, field, idle, sizes, verdicts))
    args.results.write_bytes(msgspec.json.format(result, indent=1) + b"\n")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small batches, two repeats")
    parser.add_argument("--connections", type=int, nargs="+", metavar="N", default=[8, 64])
    parser.add_argument("--repeats", type=int, default=0, help="per cell (default 5)")
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES))
    results = BENCH / "results" / "relay.json"
    parser.add_argument("--results", type=pathlib.Path, default=results, help="JSON file to write")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark: 0 when it measured, whatever it found; 1 when it is broken."""
    try:
        run(parse(argv))
    except BenchError as error:
        print(f"the benchmark is broken: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
