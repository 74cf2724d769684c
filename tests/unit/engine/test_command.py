"""The command: a line for each engine, handoffs between processes, an end when asked."""

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.waiting import soon
from transload_engine.__main__ import fleet, main, parser

# Starting Python with its imports took 0.5-3 s on 2 shared cores at load 8.
START_S = 30.0


@contextlib.asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[list[dict[str, Any]]]:
    """What the engines of one process say of themselves; checks that it ends well."""
    command = [sys.executable, "-m", "transload_engine", "--simulate", "--port", "0", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        first = await soon(process.stdout.readline(), START_S)
        lines = [first]
        wanted = sum(int(each.split("=")[1]) for each in arguments[1].split(","))
        while len(lines) < wanted:
            lines.append(await soon(process.stdout.readline(), START_S))
        yield [json.loads(line) for line in lines]
        process.terminate()
        assert await soon(process.wait(), START_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_processes_hand_off_to_each_other() -> None:
    body = {
        "model": "simulated",
        "prompt": "The cargo of one ship, told at length",
        "max_tokens": 6,
    }
    async with (
        running("--engines", "prefill=1,local=1") as (prefill, local),
        running("--engines", "decode=1") as (decode,),
        httpx.AsyncClient(trust_env=False, timeout=20) as client,
    ):

        async def complete(engine: dict[str, Any], **more: Any) -> dict[str, Any]:
            answer = await client.post(f"{engine['url']}/v1/completions", json={**body, **more})
            assert answer.status_code == 200
            return dict(answer.json())

        asked = {"do_remote_decode": True}
        first = await complete(prefill, max_tokens=1, kv_transfer_params=asked)
        second = await complete(decode, kv_transfer_params=first["kv_transfer_params"])
        alone = await complete(local)
        assert second["choices"][0]["text"] == alone["choices"][0]["text"]
        metrics = (await client.get(f"{decode['url']}/metrics")).text
        assert 'vllm:nixl_bytes_transferred_count{engine="0",model_name="simulated"} 1.0' in metrics
        assert prefill["kv_event_sources"]["0"]["endpoint"].startswith("tcp://127.0.0.1:")


async def test_a_simulation_loads_no_torch() -> None:
    program = (
        "import sys; from transload_engine.__main__ import fleet, parser;"
        "fleet(parser().parse_args(['--simulate'])); sys.exit('torch' in sys.modules)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await soon(process.wait(), START_S) == 0


def test_options_reach_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "17")
    profile = tmp_path / "profile.json"
    profile.write_text('{"decode_base_s": 0.5}')
    given = parser().parse_args(
        [
            *("--simulate", "--engines", "prefill=2,local", "--port", "9000"),
            *("--events-port", "6000", "--replay-port", "7000", "--events-topic", "t"),
            *("--prefix-caching-hash-algo", "sha256_cbor"),
            *("--event-form", "array", "--event-hashes", "bytes", "--data-parallel-size", "2"),
            *("--block-size", "32", "--num-gpu-blocks-override", "65", "--max-model-len", "2048"),
            *("--max-num-seqs", "3", "--max-num-batched-tokens", "100", "--no-async-scheduling"),
            *("--kv-lease-duration", "7", "--kv-load-failure-policy", "recompute"),
            *("--no-enable-prompt-tokens-details", "--speed", "2", "--profile", str(profile)),
        ]
    )
    first, second, local = fleet(given).specs
    assert [each.name for each in (first, second, local)] == ["prefill-0", "prefill-1", "local-0"]
    assert [each.port for each in (first, second, local)] == [9000, 9001, 9002]
    assert second.ports is not None
    assert (second.ports.events, second.ports.replay, second.ports.topic) == (6002, 7002, "t")
    core = first.core
    assert (core.block_size, core.num_blocks, core.max_model_tokens) == (32, 65, 2048)
    assert (core.max_requests, core.max_batch_tokens, core.schedules_async) == (3, 100, False)
    assert (core.lease_s, core.fails_with_load, core.has_int_names) == (7.0, False, False)
    assert (core.has_connector, local.core.has_connector) == (True, False)
    assert core.profile.decode_base_s == 0.5
    assert (core.hash_algorithm, core.hash_seed) == ("sha256_cbor", "17")
    assert (first.num_ranks, first.speed, first.reports_cached) == (2, 2.0, False)


def test_a_cache_that_holds_no_request_is_refused() -> None:
    given = parser().parse_args(["--simulate", "--num-gpu-blocks-override", "10"])
    with pytest.raises(ValueError, match="10 blocks of 16 hold 144 tokens, fewer than one request"):
        fleet(given)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engines", "prefill=0"), "expected ROLE=COUNT, each role once; got 'prefill=0'"),
        (("--engines", "prefill="), "got 'prefill='"),
        (("--engines", "decode=2,decode=3"), "got 'decode=3'"),
        (("--engines", ""), "got ''"),
        (("--data-parallel-size", "0"), "at least one rank; got 0"),
        (("--speed", "0"), "more than 0 simulated seconds in a real one; got 0.0"),
        (("--speed", "nan"), "got nan"),
        (("--port", "65536"), "a port is at most 65535, and 0 is any; got 65536"),
        (("--side-channel-port", "-1"), "got -1"),
        (("--events-port", "70000"), "got 70000"),
        (("--port", "65535", "--engines", "prefill=2"), "got 65536"),
    ],
)
def test_what_cannot_run_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(said)}$"):
        fleet(parser().parse_args(["--simulate", *arguments]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tokenizer", "nowhere"), "No such file or directory: 'nowhere/tokenizer.json'"),
        (("--speed", "-1"), "got -1.0"),
    ],
)
def test_refusals_are_told_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["transload_engine", "--simulate", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.endswith(f"{said}\n")
