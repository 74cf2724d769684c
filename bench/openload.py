"""Requests at random times, whether or not earlier ones are answered; every answer checked.

Several targets get the same requests in turn, so that one can be the other's control. A request
takes an idle connection or opens one, and its time runs from the moment it is written.
"""

import argparse
import asyncio
import random
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

from load import Plan, fault_of_json, request_bytes

TOKENS = 16
TIMEOUT_S = 30.0


class Times(msgspec.Struct):
    """What came back from one target."""

    latencies_s: list[float] = []
    faults: list[str] = []


class _Connection(asyncio.Protocol):
    """One keep-alive connection; idle while `answered` is None."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports are no instances of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(ConnectionError(f"connection lost: {exc}"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(b"".join(self._body))

    def close(self) -> None:
        """Close it, if it is open."""
        if self.transport is not None:
            self.transport.close()


class _Target:
    """One server's connections and times."""

    def __init__(self, url: str) -> None:
        self.plan = Plan(url, 1, 1, TOKENS, stream=False)
        self.times = Times()
        self._idle: list[_Connection] = []

    async def ask(self, seed: int) -> None:
        """Send one request and note how long its answer took."""
        loop, connection = asyncio.get_running_loop(), await self._connect()
        assert connection.transport is not None
        connection.answered = loop.create_future()
        sent = time.perf_counter()
        connection.transport.write(request_bytes(self.plan, seed))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                body = await connection.answered
        except (OSError, TimeoutError) as error:
            connection.close()
            self.times.faults.append(f"request {seed}: {error!r}")
            return
        self.times.latencies_s.append(time.perf_counter() - sent)
        fault = fault_of_json(body, seed, TOKENS)
        if fault is not None:
            self.times.faults.append(fault)
        self._idle.append(connection)

    async def _connect(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None:
                return connection
        host, _, port = urlsplit(self.plan.url).netloc.rpartition(":")
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, host, int(port))
        return made

    def close(self) -> None:
        """Close all connections that are idle."""
        for connection in self._idle:
            connection.close()


async def run(urls: list[str], rate: float, seconds: float, first_seed: int) -> list[Times]:
    """Send `rate` requests a second to each target for so long; wait for all answers.

    Args:
        urls: Scheme, host and port of each.
        rate: Of one target; times between requests are exponential.
        seconds: Until the last one is sent.
        first_seed: Number of the first request.
    """
    chance, loop = random.Random(first_seed), asyncio.get_running_loop()
    targets = [_Target(url) for url in urls]
    end, due, seed = loop.time() + seconds, loop.time(), first_seed
    async with asyncio.TaskGroup() as group:
        while due < end:
            await asyncio.sleep(max(0.0, due - loop.time()))
            group.create_task(targets[seed % len(targets)].ask(seed))
            due += chance.expovariate(rate * len(urls))
            seed += 1
    for target in targets:
        target.close()
    return [target.times for target in targets]


def main() -> int:
    """Run once and print what came back as JSON, one item per target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--urls", nargs="+", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--first-seed", type=int, default=1)
    times = uvloop.run(run(**vars(parser.parse_args())))
    sys.stdout.buffer.write(msgspec.json.encode(times) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
