"""The relay benchmark's pieces: the mock engine, the load that checks it, the verdict."""

import asyncio
import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

import contenders
import cputime
import figures
import load
import mock_engine
import relay
from contenders import BenchError
from mock_engine import CHAT, COMPLETIONS, Engine, Stats

TOKENS = 12


@dataclasses.dataclass
class Mock:
    engine: Engine
    url: str


@pytest.fixture
async def mock() -> AsyncIterator[Mock]:
    engine = Engine("d", step_s=0.001)
    server = await mock_engine.start(engine, 0)
    port = server.sockets[0].getsockname()[1]
    yield Mock(engine, f"http://127.0.0.1:{port}")
    server.close()
    await server.wait_closed()


def plan(url: str, stream: bool, requests: int = 20) -> load.Plan:
    return load.Plan(url, 4, requests, TOKENS, stream, timeout_s=5.0, first_seed=700)


async def test_every_request_is_answered_and_counted(mock: Mock) -> None:
    report = await load.run(plan(mock.url, stream=False))
    assert (report.answers, report.num_faults, report.faults) == (20, 0, [])
    assert mock.engine.stats == Stats(bare=20)
    assert 0 < report.latency_p50_s <= report.latency_p99_s < report.wall_s


async def test_streams_come_event_by_event(mock: Mock) -> None:
    report = await load.run(plan(mock.url, stream=True))
    assert (report.answers, report.num_faults, report.faults) == (20, 0, [])
    assert report.events == 20 * (TOKENS + 1)
    assert mock.engine.stats == Stats(bare=20, events=20 * (TOKENS + 1))
    assert report.reads >= 0.9 * report.events


@pytest.mark.parametrize("burst", [1, 32])
async def test_unpaced_streams_are_whole(mock: Mock, burst: int) -> None:
    async with httpx.AsyncClient(base_url=mock.url) as client:
        assert (await client.get("/pace/0")).status_code == 200
        assert (await client.get(f"/burst/{burst}")).status_code == 200
    report = await load.run(plan(mock.url, stream=True))
    assert (report.answers, report.events, report.faults) == (20, 20 * (TOKENS + 1), [])


@pytest.mark.parametrize("stream", [False, True])
async def test_one_wrong_token_is_a_fault(
    mock: Mock, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = mock_engine.token_text
    monkeypatch.setattr(
        mock_engine,
        "token_text",
        lambda seed, index: right(seed, index + ((seed, index) == (705, 3))),
    )
    report = await load.run(plan(mock.url, stream))
    assert (report.answers, report.num_faults) == (19, 1)
    assert report.faults[0].startswith("request 705: ")


async def test_a_stream_without_done_is_a_fault(
    mock: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mock_engine, "STREAM_END", b"0\r\n\r\n")
    report = await load.run(plan(mock.url, stream=True, requests=4))
    assert (report.answers, report.num_faults) == (0, 4)
    assert "[DONE]" in report.faults[0]


async def test_an_answer_that_never_ends_is_lost(
    mock: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mock_engine, "STREAM_END", b"")
    short = msgspec.structs.replace(plan(mock.url, stream=True, requests=4), timeout_s=0.2)
    report = await load.run(short)
    assert report.answers == 0
    assert "not complete after 0.2 s" in report.faults


async def test_nobody_listening_is_a_fault() -> None:
    report = await load.run(plan(f"http://127.0.0.1:{contenders.free_port()}", stream=False))
    assert report.answers == 0
    assert report.faults[0].startswith("no connection to ")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"data: {}\n\n", "does not end with [DONE]"),
        (b"data: [DONE]\n\n", "expected 1 events, got 0"),
        (b"data: nonsense\n\ndata: [DONE]\n\n", "event 0 is none"),
        (b'data: {"choices":[]}\n\ndata: [DONE]\n\n', "event 0 is none"),
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n', "event 0: expected"),
        (b'data: {"choices":[{"delta":{"content":""}}]}\n\ndata: [DONE]\n\n', "no finish_reason"),
    ],
)
def test_faults_of_streams(body: bytes, fault: str) -> None:
    assert fault in (load.fault_of_stream(body, seed=1, tokens=0) or "")


async def two_legs(client: httpx.AsyncClient, path: str, times: int = 1) -> dict[str, object]:
    """A prefill leg, then `times` decode legs with its handoff; returns the handoff."""
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    body = {"model": "m", "max_tokens": 1, **prompt}
    params: dict[str, object] = {"do_remote_decode": True, "do_remote_prefill": False}
    first = await client.post(path, json={**body, "kv_transfer_params": params})
    handoff: dict[str, object] = first.json()["kv_transfer_params"]
    for _ in range(times):
        second = await client.post(path, json={**body, "kv_transfer_params": handoff})
        assert second.json()["kv_transfer_params"] is None
    return handoff


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_mock_hands_off(mock: Mock, path: str) -> None:
    async with httpx.AsyncClient(base_url=mock.url) as client:
        handoff = await two_legs(client, path)
        released = await client.post(
            COMPLETIONS,
            json={
                "model": "m",
                "prompt": [0],
                "use_beam_search": True,
                "kv_transfer_params": handoff,
            },
        )
        counted = msgspec.json.decode((await client.get("/stats")).content, type=Stats)
    assert set(handoff) == {
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
        "remote_prefill_cached_tokens",
    }
    assert (released.status_code, counted.released, counted.rejected) == (400, 1, 1)
    assert (counted.prefill_legs, counted.decode_legs, counted.bare) == (1, 1, 0)
    assert counted.issued_digest == counted.consumed_digest != 0


async def test_a_handoff_used_twice_shows_in_the_digest(mock: Mock) -> None:
    async with httpx.AsyncClient(base_url=mock.url) as client:
        await two_legs(client, CHAT, times=2)
    assert mock.engine.stats.issued_digest != mock.engine.stats.consumed_digest


async def test_a_client_that_leaves_is_an_aborted_stream(
    mock: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = asyncio.Event()
    drop = mock.engine.drop_stream

    def drop_and_tell(connection: mock_engine.Connection) -> None:
        drop(connection)
        gone.set()

    monkeypatch.setattr(mock.engine, "drop_stream", drop_and_tell)
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(mock.url).port)
    writer.write(load.request_bytes(plan(mock.url, stream=True), seed=1))
    await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    await gone.wait()
    assert mock.engine.stats.aborted_streams == 1


@pytest.mark.parametrize(
    ("prefill", "decode", "fault"),
    [
        (Stats(prefill_legs=2, issued_digest=9), Stats(decode_legs=2, consumed_digest=9), None),
        (Stats(prefill_legs=1), Stats(decode_legs=2), "prefill_legs"),
        (Stats(prefill_legs=2), Stats(decode_legs=1, bare=1), "decode_legs"),
        (Stats(prefill_legs=2), Stats(decode_legs=2, bare=1), "bare"),
        (Stats(prefill_legs=2), Stats(decode_legs=2, aborted_streams=1), "aborted_streams"),
        (Stats(prefill_legs=2, issued_digest=9), Stats(decode_legs=2, consumed_digest=8), "issued"),
    ],
)
def test_a_batch_needs_both_legs(prefill: Stats, decode: Stats, fault: str | None) -> None:
    found = relay.fault_of_legs([Stats(), Stats()], [prefill, decode], requests=2)
    assert found is None if fault is None else fault in (found or "")


@pytest.mark.parametrize(
    ("both", "alone", "is_right"), [(0, 2, True), (1, 1, True), (2, 0, True), (1, 0, False)]
)
def test_who_decides_freely_may_leave_prefill_out(both: int, alone: int, is_right: bool) -> None:
    after = [Stats(prefill_legs=both), Stats(decode_legs=both, bare=alone)]
    found = relay.fault_of_legs([Stats(), Stats()], after, requests=2, is_free=True)
    assert (found is None) is is_right


def test_a_direct_batch_has_no_handoff() -> None:
    assert relay.fault_of_legs([Stats(bare=1)], [Stats(bare=3)], requests=2) is None
    assert relay.fault_of_legs([Stats()], [Stats(decode_legs=2)], requests=2) is not None


THEIRS = "vllm-router"


def sample(cpu_s: float) -> figures.Sample:
    return figures.Sample(cpu_s, 100, 10_000, 10_000, 2.0, 0.01, 0.02, 0.5)


def cell(
    kind: figures.Kind, ours: list[float], theirs: list[float], connections: int = 64
) -> figures.Cell:
    made = figures.Cell(kind, connections, 100, 99)
    made.samples = {
        figures.OURS: [sample(cpu_s) for cpu_s in ours],
        THEIRS: [sample(cpu_s) for cpu_s in theirs],
    }
    made.summaries = {
        name: figures.summarise(samples, kind) for name, samples in made.samples.items()
    }
    return made


@pytest.mark.parametrize(
    ("kind", "ours", "connections", "word"),
    [
        ("plain", 0.70, 64, "pass"),
        ("plain", 0.71, 64, "miss"),
        ("paced", 0.50, 64, "pass"),
        ("paced", 0.51, 64, "miss"),
        ("unpaced", 0.51, 64, "miss"),
        ("burst", 0.50, 64, "pass"),
        ("paced", 0.90, 8, ""),
    ],
)
def test_the_verdict_is_of_the_medians(
    kind: figures.Kind, ours: float, connections: int, word: str
) -> None:
    made = cell(kind, [ours, 0.01, 9.0], [1.0, 0.5, 2.0], connections)
    verdict = figures.compare(made, THEIRS)
    assert verdict is not None
    assert (round(verdict.ratio, 9), verdict.word) == (ours, word)
    assert (verdict.min_ratio, verdict.max_ratio) == (0.02, 4.5)


def test_the_report_reads() -> None:
    made = cell("paced", [0.2, 0.4, 0.3], [1.0, 1.1, 0.9])
    assert figures.table([made], "paced") == [
        "router CPU per 100,000 events, one per stream every 10 ms (s)",
        "conns contender         median         min-max    events/s   p50 ms   p99 ms events/read",
        "   64 transload           3.00       2.00-4.00        5000     10.0     20.0        1.00",
        "   64 vllm-router        10.00      9.00-11.00        5000     10.0     20.0        1.00",
    ]
    verdict = figures.compare(made, THEIRS)
    assert verdict is not None
    assert figures.verdict_line(verdict, repeats=3) == (
        "transload / vllm-router, CPU per event (paced) at 64 connections: 0.30 (0.20-0.36)"
        "  target <= 0.50: pass (provisional: 3 repeats)"
    )


def test_only_like_with_like_has_a_target() -> None:
    made = cell("plain", [2.0], [1.0])
    made.samples[figures.COST] = made.samples[figures.OURS]
    made.summaries[figures.COST] = made.summaries[figures.OURS]
    verdict = figures.compare(made, THEIRS, figures.COST)
    assert verdict is not None
    assert (verdict.ours, verdict.ratio, verdict.limit) == ("transload-cost", 2.0, None)


def test_without_both_routers_there_is_no_verdict() -> None:
    made = cell("plain", [1.0], [1.0])
    del made.samples[figures.OURS]
    assert figures.compare(made, THEIRS) is None


def test_a_broken_run_is_told_by_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise BenchError("no engine")

    monkeypatch.setattr(contenders, "start", refuse)
    monkeypatch.setattr(relay, "BENCH", tmp_path)
    assert relay.main(["--results", str(tmp_path / "relay.json")]) == 1
    assert "no engine" in capsys.readouterr().err
    assert not (tmp_path / "relay.json").exists()


def test_cpu_time_is_of_the_whole_tree() -> None:
    code = "import sys; sum(range(3_000_000)); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in cputime.tree(os.getpid())
        of_child, of_both = cputime.cpu_s(child.pid), cputime.cpu_s(os.getpid())
        assert 0.005 < of_child < of_both
        child.communicate()
