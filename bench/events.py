"""What do engines' KV events cost? Blocks per second of one core, from bytes to the index's door.

Every step of a full cache: as many blocks removed, one event each, as are stored in one event of
16-token blocks. Decoding and stream are timed by the thread's CPU time, beside msgspec decoding
the same bytes into plain lists and dicts, in turns; medians over the repeats.

- *plain*: `msgspec.msgpack.decode`, nothing checked: the floor.
- *decode*: `decode_batch`, from maps (vLLM from 0.24) and from arrays (before).
- *stream*: `EventStream.handle` of live batches, decoding included.
- *subscriber*: batches that wait in ZMQ on loopback, received, decoded and handed to a sink that
  only counts; CPU of the loop's thread. Meanwhile a callback that wants to run on every turn of
  the loop says how long it had to wait at most.
"""

import argparse
import asyncio
import datetime
import importlib.metadata
import os
import pathlib
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable

import msgspec
import uvloop
import zmq

from transload_router.core.kv_events.decode import decode_batch
from transload_router.core.kv_events.messages import Live, StreamState
from transload_router.core.kv_events.stream import EventStream
from transload_router.io.events import EventSubscriber, Limits, Source

BENCH = pathlib.Path(__file__).parent
BLOCK_SIZE = 16
# A decode step of a few sequences; a chunk of 512 prompt tokens; one of 8,192.
BLOCKS_PER_BATCH = (1, 4, 32, 512)
REPEATS = 5


class Row(msgspec.Struct, frozen=True):
    """One way of doing it, at one size."""

    what: str
    blocks_per_batch: int
    blocks_per_s: float
    us_per_batch: float
    events_per_s: float
    times_plain: float
    longest_wait_ms: float | None = None


def make_batches(num_blocks: int, num_batches: int, *, as_maps: bool) -> list[bytes]:
    """Payloads as vLLM 0.32 (maps) or 0.16 (arrays) writes them."""
    chance = random.Random(num_blocks)
    payloads = []
    for index in range(num_batches):
        hashes = [chance.getrandbits(64) for _ in range(2 * num_blocks)]
        tokens = [chance.randrange(128_000) for _ in range(BLOCK_SIZE * num_blocks)]
        stored: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": hashes[:num_blocks],
            "parent_block_hash": chance.getrandbits(64),
            "token_ids": tokens,
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        events: list[dict[str, object]] = [
            {"type": "BlockRemoved", "block_hashes": [one], "medium": "GPU"}
            for one in hashes[num_blocks:]
        ]
        if as_maps:
            stored |= {"extra_keys": [None] * num_blocks, "group_idx": 0}
            stored["kv_cache_spec_kind"] = "full_attention"
            events = [{**event, "group_idx": 0} for event in events]
        events.append(stored)
        encoded = events if as_maps else [list(event.values()) for event in events]
        payloads.append(msgspec.msgpack.encode([1e9 + index, encoded, 0]))
    return payloads


def cpu_s(work: Callable[[bytes], object], payloads: Iterable[bytes]) -> float:
    """CPU seconds of this thread for all of them."""
    start = time.thread_time()
    for payload in payloads:
        work(payload)
    return time.thread_time() - start


def stream_s(payloads: list[bytes]) -> float:
    """Likewise, through a new stream."""
    stream = EventStream()
    start = time.thread_time()
    for seq, payload in enumerate(payloads):
        stream.handle(Live(seq, payload))
    return time.thread_time() - start


class Tally:
    """A sink that counts."""

    def __init__(self) -> None:
        self.num_events = 0

    def apply(self, _key: object, _event: object) -> None:
        """Count it."""
        self.num_events += 1

    def clear(self, _key: object) -> None:
        """Nothing is kept."""

    def set_state(self, _key: object, _state: StreamState, _reason: str) -> None:
        """Nothing is shown."""

    def count(self, _key: object, what: str, _amount: int) -> None:
        """Nothing may be lost here; there is nobody to ask for a replay, either."""
        if what != "replay_failed":
            raise RuntimeError(f"unexpected: {what}")


async def subscriber_s(payloads: list[bytes], num_events: int) -> tuple[float, float]:
    """CPU seconds of the loop's thread for a queue of batches, and the loop's longest delay."""
    tally = Tally()
    subscriber = EventSubscriber(tally, Limits(max_live_queue=0))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pub = context.socket(zmq.XPUB)
    pub.set_hwm(0)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    subscriber.add("e", 0, [Source(0, f"tcp://127.0.0.1:{port}")])
    pub.recv()  # the subscription
    for seq, payload in enumerate(payloads):
        pub.send_multipart((b"", seq.to_bytes(8, "big"), payload))
    # Until ZMQ's threads have brought them here; the subscriber takes none meanwhile.
    time.sleep(0.2 + len(payloads) * 2e-5)  # noqa: ASYNC251
    start, longest, last = time.thread_time(), 0.0, time.perf_counter()
    while tally.num_events < num_events and time.thread_time() - start < 60.0:
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    elapsed = time.thread_time() - start
    await subscriber.stop()
    pub.close(linger=0)
    context.term()
    return elapsed, longest


def measure(num_blocks: int, num_batches: int, repeats: int) -> list[Row]:
    """All ways at one size."""
    maps = make_batches(num_blocks, num_batches, as_maps=True)
    arrays = make_batches(num_blocks, num_batches, as_maps=False)
    num_events = num_batches * (num_blocks + 1)
    samples: dict[str, list[float]] = {}
    waits = []
    for _ in range(repeats):
        taken = {
            "plain": cpu_s(msgspec.msgpack.decode, maps),
            "decode, maps": cpu_s(decode_batch, maps),
            "decode, arrays": cpu_s(decode_batch, arrays),
            "stream": stream_s(maps),
        }
        # Removals in a row arrive as one.
        taken["subscriber"], wait = uvloop.run(subscriber_s(maps, 2 * num_batches))
        waits.append(wait)
        for what, seconds in taken.items():
            samples.setdefault(what, []).append(seconds)
    plain = statistics.median(samples["plain"])
    rows = []
    for what, seconds_each in samples.items():
        seconds = statistics.median(seconds_each)
        rows.append(
            Row(
                what,
                num_blocks,
                round(num_batches * num_blocks / seconds),
                round(seconds / num_batches * 1e6, 2),
                round(num_events / seconds),
                round(seconds / plain, 2),
                round(statistics.median(waits) * 1e3, 2) if what == "subscriber" else None,
            )
        )
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller, for a look")
    default = BENCH / "results" / "events.json"
    parser.add_argument("--results", type=pathlib.Path, default=default)
    args = parser.parse_args()
    total_blocks, repeats = (4_000, 3) if args.quick else (20_000, REPEATS)
    rows: list[Row] = []
    print(
        f"{'':16}{'blocks/batch':>13}{'blocks/s':>12}{'us/batch':>10}{'x plain':>9}{'wait ms':>9}"
    )
    for num_blocks in BLOCKS_PER_BATCH:
        for row in measure(num_blocks, max(40, min(10_000, total_blocks // num_blocks)), repeats):
            rows.append(row)
            wait = "" if row.longest_wait_ms is None else f"{row.longest_wait_ms:.2f}"
            print(
                f"{row.what:16}{num_blocks:13}{row.blocks_per_s:12,.0f}{row.us_per_batch:10.2f}"
                f"{row.times_plain:9.2f}{wait:>9}"
            )
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python bench/events.py" + (" --quick" if args.quick else ""),
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "versions": {
            "python": platform.python_version(),
            "msgspec": msgspec.__version__,
            "pyzmq": zmq.__version__,
            "libzmq": zmq.zmq_version(),
            "uvloop": importlib.metadata.version("uvloop"),
        },
        "block_size": BLOCK_SIZE,
        "rows": rows,
    }
    args.results.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


if __name__ == "__main__":
    main()
