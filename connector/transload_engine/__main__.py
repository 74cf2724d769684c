"""`python -m transload_engine`: engines until SIGINT or SIGTERM.

With `--simulate` many simulated ones, with `--model PATH` one that computes.
"""

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from transload_engine.core.hashes import NO_SEED, HashAlgorithm
from transload_engine.core.settings import CoreSettings
from transload_engine.core.timing import Profile
from transload_engine.server.engine import Engine, EngineSpec
from transload_engine.server.fleet import SimulatedFleet
from transload_engine.server.model_command import load, model_parser, running
from transload_engine.server.options import add_options, event_ports


def parser() -> argparse.ArgumentParser:
    """The command line of simulated engines; options that vLLM has are called as there."""
    core, spec = CoreSettings(), EngineSpec()
    made = argparse.ArgumentParser(
        prog="python -m transload_engine --simulate",
        description="Simulated engines: tokens from a hash, time from a profile.",
    )
    add = made.add_argument
    add("--simulate", action="store_true", required=True, help="no model is computed")
    add("--engines", default="engine=1", help="so many of each role: prefill=8,decode=8,local=1")
    add_options(made, HashAlgorithm.TRANSLOAD)
    add("--port", type=int, default=8000, help="of the first engine; the others follow")
    add("--served-model-name", default=spec.model)
    add("--max-model-len", type=int, default=core.max_model_tokens)
    add("--num-gpu-blocks-override", type=int, default=core.num_blocks, help="blocks of a rank")
    add("--max-num-batched-tokens", type=int, default=core.max_batch_tokens)
    flag = argparse.BooleanOptionalAction
    add("--async-scheduling", action=flag, default=True)
    add("--data-parallel-size", type=int, default=1, help="ranks, each with a cache of its own")
    add("--kv-lease-duration", type=float, default=core.lease_s, help="seconds")
    add("--kv-load-failure-policy", choices=("fail", "recompute"), default="fail")
    add("--side-channel-host", default=spec.side_channel_host, help="where engines read blocks")
    add("--side-channel-port", type=int, default=0, help="0: any; ranks and engines follow")
    add("--mean-answer-tokens", type=int, default=0, help="0: answers end by length alone")
    add("--default-max-tokens", type=int, default=spec.default_max_tokens)
    add("--profile", type=Path, help="JSON of core/timing.py:Profile")
    add("--speed", type=float, default=spec.speed, help="simulated seconds in a real one")
    return made


def _core(given: argparse.Namespace) -> CoreSettings:
    return CoreSettings(
        block_size=given.block_size,
        num_blocks=given.num_gpu_blocks_override,
        max_model_tokens=given.max_model_len,
        max_requests=given.max_num_seqs,
        max_batch_tokens=given.max_num_batched_tokens,
        schedules_async=given.async_scheduling,
        caches_prefixes=given.enable_prefix_caching,
        lease_s=given.kv_lease_duration,
        fails_with_load=given.kv_load_failure_policy == "fail",
        mean_answer_tokens=given.mean_answer_tokens,
        has_events=given.events,
        has_int_names=given.event_hashes == "int",
        hash_algorithm=HashAlgorithm(given.prefix_caching_hash_algo),
        hash_seed=os.environ.get("PYTHONHASHSEED", NO_SEED),
        profile=Profile.load(given.profile) if given.profile else Profile(),
    )


def fleet(given: argparse.Namespace) -> SimulatedFleet:
    """What the command line describes.

    Raises:
        ValueError: It describes nothing that can run.
        OSError: A tokenizer's files cannot be read.
    """
    spec = EngineSpec(
        host=given.host,
        port=given.port,
        side_channel_host=given.side_channel_host,
        side_channel_port=given.side_channel_port,
        model=given.served_model_name,
        core=_core(given),
        num_ranks=given.data_parallel_size,
        ports=event_ports(given),
        speed=given.speed,
        reports_cached=given.enable_prompt_tokens_details,
        default_max_tokens=given.default_max_tokens,
        tokenizer_path=given.tokenizer,
    )
    return SimulatedFleet.of(spec, **_counts(given.engines))


def _counts(engines: str) -> dict[str, int]:
    """Engines by role, from `prefill=8,local`."""
    counts: dict[str, int] = {}
    for each in engines.split(","):
        role, equals, count = each.partition("=")
        if not role or role in counts or (equals and not re.fullmatch("[1-9][0-9]*", count)):
            raise ValueError(f"--engines: expected ROLE=COUNT, each role once; got {each!r}")
        counts[role] = int(count) if equals else 1
    return counts


async def serve(started: contextlib.AbstractAsyncContextManager[Sequence[Engine[Any]]]) -> None:
    """Serve until told to end; a line of JSON for each engine once it can be reached."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    async with started as engines:
        for engine in engines:
            sys.stdout.write(engine.description().decode() + "\n")
        sys.stdout.flush()
        await ending.wait()


@contextlib.asynccontextmanager
async def _simulated(engines: SimulatedFleet) -> AsyncIterator[Sequence[Engine[Any]]]:
    async with engines:
        yield engines.engines


def main() -> int:
    """Run what the command line asks for."""
    made = parser() if "--simulate" in sys.argv[1:] else model_parser()
    given = made.parse_args()
    try:
        started = _simulated(fleet(given)) if "simulate" in given else running(load(given))
    except (OSError, ValueError) as error:
        made.error(str(error))
    uvloop.run(serve(started))
    return 0


if __name__ == "__main__":
    sys.exit(main())
