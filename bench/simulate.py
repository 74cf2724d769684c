"""What would a policy have done? A fleet in simulated time, ours beside the usual policies.

    python bench/simulate.py --trace TRACE.jsonl --prefill 8 --decode 6 --levels low,medium,high
    python bench/simulate.py --workload agents --mixed 8 --policies cost,overlap-load

Engines, caches and links are simulated; what chooses among them is the router's own core, fed with
events and with the moments of answers as in service. See `simulation/` for the truth and its
sources, and README.md for how to read the tables.
"""

import argparse
import json
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

from simulation import bound, profiles, recording, report, scenario
from simulation.fleet import Shape
from simulation.measure import Slo
from simulation.scenario import ABLATIONS, ALL, LEVELS, VARIANTS, Scenario
from simulation.trace import Request, TraceError, ideal_hit_rate, read_trace, spread
from simulation.workloads import WORKLOADS


def main(argv: list[str] | None = None) -> int:
    """Runs what was asked for; the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.check_recording:
            print(recording.compare(recording.read_recording()))
            return 0
        plan, title = _plan(arguments)
        policies = _policies(arguments.policies)
    except (TraceError, recording.RecordingError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    print(title, flush=True)
    if arguments.bounds:
        _print_bounds(plan)
        return 0
    began_s = time.monotonic()
    figures = []
    for one in scenario.run_all(plan, policies, arguments.jobs):
        figures.append(one)
        print(
            f"  {one.level:<8} {one.policy:<22} p90 {one.ttft_p90_s:8.2f} s  hit "
            f"{100 * one.hit_rate:4.1f} %  good {one.goodput_per_s:6.2f}/s  ({one.cpu_s:.1f} s)",
            flush=True,
        )
    print(f"\n{report.table(figures)}\n{time.monotonic() - began_s:.0f} s")
    about = {"command": f"python bench/simulate.py {_command(argv)}", "title": title}
    if arguments.json is not None:
        report.write_json(arguments.json, about, figures)
    if arguments.plots is not None:
        arguments.plots.mkdir(parents=True, exist_ok=True)
        name = arguments.json.stem if arguments.json is not None else "simulate"
        report.plot(arguments.plots / f"{name}.png", title, figures)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="a file in the conversation trace's form")
    source.add_argument("--workload", choices=sorted(WORKLOADS), help="one made by rule")
    source.add_argument(
        "--check-recording",
        action="store_true",
        help="hold the truth against the recorded engine, and end",
    )
    parser.add_argument("--requests", type=int, help="at most (workloads: 6000)")
    parser.add_argument("--skip", type=int, default=0, help="leave out the trace's first requests")
    parser.add_argument("--as-stamped", action="store_true", help="keep bursts of equal stamps")
    parser.add_argument("--prefill", type=int, default=8)
    parser.add_argument("--decode", type=int, default=6)
    parser.add_argument("--mixed", type=int, default=0, help="instead of prefill and decode")
    parser.add_argument("--zones", type=int, default=1, help="slow links between zones")
    parser.add_argument("--cache-blocks", type=int, default=3000, help="of 512 tokens, per engine")
    parser.add_argument("--profile", choices=["h100-8b", "cpu"], default="h100-8b")
    parser.add_argument("--stragglers", type=int, default=0, help="engines that take half longer")
    parser.add_argument("--event-loss", type=float, default=0.0, help="share replayed 0.5 s late")
    parser.add_argument("--levels", default="low,medium,high", help="names or nominal loads")
    parser.add_argument("--speed", help="instead of levels: times the trace's own, comma-separated")
    parser.add_argument("--slo", default="5,0.1", help="seconds: first token, mean between tokens")
    parser.add_argument("--policies", default="all", help="all, ablations, or names")
    parser.add_argument(
        "--bounds", action="store_true", help="say what no policy could exceed, and end"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path, help="a folder")
    return parser


def _print_bounds(plan: Scenario) -> None:
    for level, speed in plan.levels:
        most = bound.bound_of(
            plan.requests, plan.shape.num_engines, plan.profile.times, plan.slo, speed
        )
        print(
            f"  {level:<8} {most.offered_per_s:7.2f}/s offered, {100 * most.too_long_share:.1f} % "
            f"too long by themselves; at most {most.goodput_per_s:7.2f}/s good"
        )


def _plan(arguments: argparse.Namespace) -> tuple[Scenario, str]:
    requests, name = _requests(arguments)
    shape = Shape(cache_blocks=arguments.cache_blocks, num_zones=arguments.zones)
    if arguments.mixed:
        shape = replace(shape, num_mixed=arguments.mixed)
    else:
        shape = replace(shape, num_prefill=arguments.prefill, num_decode=arguments.decode)
    profile = profiles.H100_8B if arguments.profile == "h100-8b" else recording.cpu_profile()
    profile = replace(profile, num_stragglers=arguments.stragglers, event_loss=arguments.event_loss)
    first_token_s, inter_token_s = (float(bound) for bound in arguments.slo.split(","))
    levels = _levels(arguments, requests, shape, profile)
    slo = Slo(first_token_s, inter_token_s)
    plan = Scenario(requests, shape, profile, levels, slo, arguments.seed)
    title = (
        f"{name}: {len(requests)} requests on {shape}, {profile.name}, "
        f"{shape.cache_blocks} blocks each; ideal hit rate {100 * ideal_hit_rate(requests):.1f} %; "
        f"SLO {first_token_s:g} s, {1e3 * inter_token_s:g} ms; seed {arguments.seed}"
    )
    return plan, title


def _requests(arguments: argparse.Namespace) -> tuple[list[Request], str]:
    if arguments.workload is not None:
        make = WORKLOADS[arguments.workload]
        return make(arguments.requests or 6000, arguments.seed), arguments.workload
    requests = read_trace(arguments.trace)
    if not arguments.as_stamped:
        requests = spread(requests)
    requests = requests[arguments.skip :][: arguments.requests]
    if not requests:
        raise TraceError(f"{arguments.trace}: nothing is left behind --skip {arguments.skip}")
    start_s = requests[0].arrival_s
    requests = [replace(one, arrival_s=one.arrival_s - start_s) for one in requests]
    return requests, arguments.trace.stem


def _levels(
    arguments: argparse.Namespace,
    requests: list[Request],
    shape: Shape,
    profile: profiles.Profile,
) -> list[tuple[str, float]]:
    if arguments.speed is not None:
        return [(f"{speed}x", float(speed)) for speed in arguments.speed.split(",")]
    loads = {name: LEVELS.get(name) or float(name) for name in arguments.levels.split(",")}
    return [
        (name, scenario.nominal_speed(requests, shape, profile, load))
        for name, load in loads.items()
    ]


def _policies(text: str) -> list[str]:
    if text == "all":
        return list(ALL)
    if text == "ablations":
        return [scenario.OURS, *ABLATIONS]
    names = text.split(",")
    unknown = [name for name in names if name not in ALL and name not in VARIANTS]
    if unknown:
        raise TraceError(f"no policy {unknown[0]!r}; there are {json.dumps([*ALL, *ABLATIONS])}")
    return names


def _command(argv: list[str] | None) -> str:
    """As typed, but for the folder a trace lies in."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--trace" in words:
        at = words.index("--trace") + 1
        words[at] = Path(words[at]).name
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
