"""A bounded load of chat completions over keep-alive connections, every answer checked.

Each connection sends its next request when the last answer is complete. Requests are numbered;
the number is the request's `seed`, and the mock engine makes its text from it, so a lost, cut,
reordered or swapped answer is a fault here. Knows nothing of routers or CPU time.
"""

import argparse
import asyncio
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

from mock_engine import CHAT, MODEL, token_text

# About the size of a short chat with a system prompt: the body is 1.2 KB on the wire.
SYSTEM_PROMPT = "You are a helpful assistant that answers briefly and names its sources. " * 14
# Faults kept as text; all of them are counted.
MAX_FAULT_TEXTS = 5


class Plan(msgspec.Struct, frozen=True):
    """One batch of load.

    Attributes:
        url: scheme, host and port, `http` only.
        connections: keep-alive connections, each with one request in flight.
        requests: requests over all connections.
        tokens: `max_tokens` of each request; a stream has one event more, the role's.
        stream: ask for server-sent events.
        timeout_s: end of the batch, complete or not.
        first_seed: number of the first request.
    """

    url: str
    connections: int
    requests: int
    tokens: int
    stream: bool
    timeout_s: float = 60.0
    first_seed: int = 1


class Report(msgspec.Struct):
    """What came back. `answers` are the complete and right ones."""

    requests: int
    answers: int = 0
    events: int = 0
    reads: int = 0
    wall_s: float = 0.0
    latency_p50_s: float = 0.0
    latency_p99_s: float = 0.0
    num_faults: int = 0
    faults: list[str] = []


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_DECODER = msgspec.json.Decoder(_Answer)


def request_bytes(plan: Plan, seed: int) -> bytes:
    """One chat completions request as bytes on the wire."""
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": f"Question {seed}: what does a transload terminal do?"},
        ],
        "max_tokens": plan.tokens,
        "seed": seed,
        "temperature": 0.7,
        "stream": plan.stream,
    }
    data = msgspec.json.encode(body)
    host = urlsplit(plan.url).netloc
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\nuser-agent: bench\r\naccept: */*\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def fault_of_json(body: bytes, seed: int, tokens: int) -> str | None:
    """What is wrong with an answer that was not streamed, or None."""
    try:
        choice = _DECODER.decode(body).choices[0]
    except (msgspec.DecodeError, IndexError) as error:
        return f"request {seed}: not an answer: {error}"
    expected = "".join(token_text(seed, index) for index in range(tokens))
    if choice.message is None or choice.message.content != expected:
        return f"request {seed}: expected text of {tokens} tokens, got another"
    if choice.finish_reason != "length":
        return f"request {seed}: expected finish_reason length, got {choice.finish_reason}"
    return None


def fault_of_stream(body: bytes, seed: int, tokens: int) -> str | None:
    """What is wrong with a streamed answer, or None: role, each token in order, `[DONE]`, end."""
    parts = body.split(b"\n\n")
    if parts[-2:] != [b"data: [DONE]", b""]:
        return f"request {seed}: the stream does not end with [DONE]"
    parts = parts[:-2]
    if len(parts) != tokens + 1:
        return f"request {seed}: expected {tokens + 1} events, got {len(parts)}"
    reason: str | None = None
    for index, part in enumerate(parts):
        try:
            choice = _DECODER.decode(part.removeprefix(b"data: ")).choices[0]
        except (msgspec.DecodeError, IndexError) as error:
            return f"request {seed}: event {index} is none: {error}"
        expected = token_text(seed, index - 1) if index else ""
        if choice.delta is None or choice.delta.content != expected:
            return f"request {seed}: event {index}: expected {expected!r}, got another"
        reason = choice.finish_reason
    return None if reason == "length" else f"request {seed}: the last event has no finish_reason"


class _Batch:
    """State shared by the connections of one batch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.report = Report(requests=plan.requests)
        self.latencies_s: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next = 0
        self._open = plan.connections

    def take(self) -> int | None:
        """The next request's number, or None when all are taken."""
        if self._next >= self.plan.requests:
            return None
        self._next += 1
        return self.plan.first_seed + self._next - 1

    def settle(self, fault: str | None, num_events: int, latency_s: float) -> None:
        """Count one complete answer."""
        if fault is not None:
            self.fail(fault)
            return
        self.report.answers += 1
        self.report.events += num_events
        self.latencies_s.append(latency_s)

    def fail(self, fault: str) -> None:
        """Count one fault."""
        self.report.num_faults += 1
        if len(self.report.faults) < MAX_FAULT_TEXTS:
            self.report.faults.append(fault)

    def close_one(self) -> None:
        """A connection has nothing left to do; the last one ends the batch."""
        self._open -= 1
        if self._open <= 0 and not self.done.done():
            self.done.set_result(None)


class _Connection(asyncio.Protocol):
    """One keep-alive connection working through the batch."""

    def __init__(self, batch: _Batch) -> None:
        self._batch = batch
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._seed: int | None = None
        self._sent_at_s = 0.0
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports are no instances of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._seed is not None:
            self._batch.fail(f"request {self._seed}: connection lost: {exc}")
            self._seed = None
        self._batch.close_one()

    def data_received(self, data: bytes) -> None:
        self._batch.report.reads += 1
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._batch.fail(f"request {self._seed}: not HTTP: {error}")
            self._seed = None
            if self._transport is not None:
                self._transport.close()

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        batch, seed = self._batch, self._seed
        assert seed is not None
        plan, body = batch.plan, b"".join(self._body)
        status = self._parser.get_status_code()
        if status != 200:
            fault: str | None = f"request {seed}: status {status}: {body[:200]!r}"
        elif plan.stream:
            fault = fault_of_stream(body, seed, plan.tokens)
        else:
            fault = fault_of_json(body, seed, plan.tokens)
        batch.settle(fault, plan.tokens + 1 if plan.stream else 0, self._age_s())
        self._send_next()

    def _age_s(self) -> float:
        return time.perf_counter() - self._sent_at_s

    def _send_next(self) -> None:
        assert self._transport is not None
        self._seed = self._batch.take()
        if self._seed is None:
            self._transport.close()
            return
        self._sent_at_s = time.perf_counter()
        self._transport.write(request_bytes(self._batch.plan, self._seed))


def quantile(values: list[float], fraction: float) -> float:
    """The nearest-rank quantile; 0.0 of nothing."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(fraction * len(ranked)))] if ranked else 0.0


async def run(plan: Plan) -> Report:
    """Run one batch to its end or its timeout.

    Raises:
        ValueError: the plan's URL names no host or no port.
    """
    loop = asyncio.get_running_loop()
    batch, target = _Batch(plan), urlsplit(plan.url)
    if target.hostname is None or target.port is None:
        raise ValueError(f"expected a URL with host and port, got {plan.url}")
    started_s = time.perf_counter()
    transports: list[asyncio.BaseTransport] = []
    try:
        async with asyncio.timeout(plan.timeout_s):
            for _ in range(plan.connections):
                transport, _protocol = await loop.create_connection(
                    lambda: _Connection(batch), target.hostname, target.port
                )
                transports.append(transport)
            await batch.done
    except TimeoutError:
        batch.fail(f"not complete after {plan.timeout_s} s")
    except OSError as error:
        batch.fail(f"no connection to {plan.url}: {error}")
    finally:
        for each in transports:
            each.close()
    report = batch.report
    report.wall_s = time.perf_counter() - started_s
    report.latency_p50_s = quantile(batch.latencies_s, 0.50)
    report.latency_p99_s = quantile(batch.latencies_s, 0.99)
    if report.answers + report.num_faults < report.requests:
        batch.fail(f"expected {report.requests} answers, got {report.answers}")
    return report


def main() -> int:
    """Run one batch and print its report as JSON; status 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--first-seed", type=int, default=1)
    plan = Plan(**vars(parser.parse_args()))
    report = uvloop.run(run(plan))
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    return 0 if report.num_faults == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
