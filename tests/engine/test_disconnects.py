"""A client that leaves, in whatever phase, leaves both engines idle at once: no lease runs out."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from engine.world import Ledger, World, assert_idle, token_ids
from real_engine.launch import MODEL_NAME, scrape

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

LONG_ANSWER = 1000
"""Tokens of an answer that no test waits for: some 10 s of decoding."""

PHASE_S = 30.0
"""Within this, a request that was sent reaches the phase a test waits for."""

TEXT = "while queue: node = queue.pop()\n" * 25

ENDPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": TEXT}],
            "max_tokens": LONG_ANSWER,
            "ignore_eos": True,
        },
    ),
    "completions": (
        "/v1/completions",
        {"prompt": TEXT, "max_tokens": LONG_ANSWER, "ignore_eos": True},
    ),
    "responses": (
        "/v1/responses",
        {"input": TEXT, "max_output_tokens": LONG_ANSWER, "store": False, "ignore_eos": True},
    ),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": TEXT}], "max_tokens": LONG_ANSWER},
    ),
    "generate": (
        "/inference/v1/generate",
        {
            "token_ids": token_ids(300, "generate"),
            "sampling_params": {"max_tokens": LONG_ANSWER, "ignore_eos": True},
        },
    ),
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_left_while_streaming(world: World, client: httpx.Client, endpoint: str) -> None:
    path, body = ENDPOINTS[endpoint]
    ledger = Ledger(world)
    request = {"model": MODEL_NAME, "stream": True, **body}
    with client.stream("POST", f"{world.router.url}{path}", json=request) as answer:
        assert answer.status_code == 200
        next(answer.iter_bytes())
    assert_idle(world)
    _assert_clean(world, ledger)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_left_without_stream(world: World, endpoint: str) -> None:
    """The answer's header comes with its end, so this is the wait for decode's header, too."""
    path, body = ENDPOINTS[endpoint]
    ledger = Ledger(world)
    with _send(world, path, body):
        _wait(lambda: scrape(world.decode.url)["vllm:num_requests_running"] == 1)
    assert_idle(world)
    _assert_clean(world, ledger)


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
def test_left_while_prefill_reads(world: World, is_stream: bool) -> None:
    """Six long prompts keep prefill busy for seconds; all six clients leave meanwhile."""
    ledger = Ledger(world)
    bodies = [
        {
            "prompt": token_ids(1900, f"{n} {is_stream}"),
            "max_tokens": 100,
            "stream": is_stream,
        }
        for n in range(6)
    ]
    sockets = [_send(world, "/v1/completions", body) for body in bodies]
    _wait(lambda: _num_legs(world, "prefill") == len(bodies))
    for each in sockets:
        each.close()
    _wait(lambda: _num_legs(world, "prefill") == 0, within_s=1.0)
    assert_idle(world)
    _assert_clean(world, ledger)


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
def test_left_at_any_moment(world: World, is_stream: bool) -> None:
    """One client after another leaves 10 ms later than the one before: across every boundary."""
    ledger = Ledger(world)
    for n in range(24):
        prompt = token_ids(300, f"any {n} {is_stream}")
        body = {"prompt": prompt, "max_tokens": LONG_ANSWER, "stream": is_stream}
        with _send(world, "/v1/completions", body) as connection:
            connection.settimeout(0.01 * (n + 1))
            _read_until_timeout(connection)
    assert_idle(world)
    _assert_clean(world, ledger)


def _send(world: World, path: str, body: dict[str, Any]) -> socket.socket:
    """Sends a request to the router; closing the socket is the client's leaving."""
    address = urlsplit(world.router.url)
    assert address.hostname is not None
    assert address.port is not None
    connection = socket.create_connection((address.hostname, address.port))
    data = json.dumps({"model": MODEL_NAME, **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def _read_until_timeout(connection: socket.socket) -> None:
    """Waits as long as the socket's timeout, whatever comes; leaves the rest unread."""
    deadline = time.monotonic() + (connection.gettimeout() or 0.0)
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            connection.recv(65536)
        except TimeoutError:
            return


def _wait(condition: Callable[[], bool], within_s: float = PHASE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"


def _num_legs(world: World, role: str) -> int:
    """Legs that the router has in flight on the one engine of this role."""
    series = f'transload_engine_requests_in_flight{{engine="{role}-0",role="{role}"}}'
    return int(scrape(world.router.url).get(series, 0))


def _assert_clean(world: World, ledger: Ledger) -> None:
    """No load failed, no lease ran out, and the router has forgotten the requests.

    Late notifications are not counted here: an engine whose client leaves during the load tells
    prefill twice (2 of 30 direct requests, vLLM 0.32.0), which frees nothing that is still read.
    """
    moved = ledger.moved()
    assert (moved.failed_transfers, moved.expired_leases) == (0, 0)
    assert scrape(world.router.url).get("transload_requests_in_flight", 0.0) == 0
