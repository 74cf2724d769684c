"""Publishes KV events as engines do, at a rate that is told; one ZMQ socket per engine.

Lines on standard input say how many blocks a second all engines together store from now on
("200000"), or end the process (end of input). Each is answered by a line of JSON: what was sent
until then.

Batches have vLLM 0.32's map form and are encoded beforehand: 32 removals of one hash each, then one
announcement of 32 new blocks of 16 tokens. They form a ring: what a batch stores, the one half a
ring later removes, so that each engine's cache is full and stays so. Knows nothing of routers.
"""

import argparse
import random
import select
import sys
import time

import msgspec
import zmq

BLOCK_SIZE = 16
BLOCKS_PER_BATCH = 32
# 512 announcements of 32 blocks: 16,384 blocks, or 262,144 tokens, are in each cache.
RING_BATCHES = 1024
HELD_BATCHES = RING_BATCHES // 2
# vLLM's default; nothing is dropped here before the router has long lost its step.
QUEUE = 100_000
TICK_S = 0.001


class Sent(msgspec.Struct):
    """All batches so far, those that filled the caches included."""

    batches: int = 0
    blocks_stored: int = 0
    blocks_removed: int = 0
    late_s: float = 0.0


def _stored(names: list[int], tokens: list[int]) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": BLOCK_SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(names),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


class Ring:
    """One engine's batches, encoded.

    Attributes:
        filling: Announcements alone, for an empty cache.
        turning: The ring; the first one removes what the first of `filling` stored.
    """

    def __init__(self, seed: int, num_batches: int = RING_BATCHES) -> None:
        chance = random.Random(seed)
        encode = msgspec.msgpack.Encoder().encode
        half = num_batches // 2
        names = [[chance.getrandbits(64) for _ in range(BLOCKS_PER_BATCH)] for _ in range(2 * half)]
        ids = range(150_000)
        stored = [_stored(one, chance.choices(ids, k=BLOCK_SIZE * len(one))) for one in names]
        self.filling = [encode([1e9, [one], 0]) for one in stored[half:]]
        self.turning = []
        for at, announced in enumerate(stored):
            removed = [
                {"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU", "group_idx": 0}
                for name in names[at - half]
            ]
            self.turning.append(encode([1e9, [*removed, announced], 0]))


class Publisher:
    """All engines' sockets, in turn."""

    def __init__(self, num_engines: int) -> None:
        self.sent = Sent()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._rings = [Ring(seed) for seed in range(num_engines)]
        self._sockets = []
        self.endpoints = []
        for _ in range(num_engines):
            socket = self._context.socket(zmq.XPUB)
            socket.setsockopt(zmq.SNDHWM, QUEUE)
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            self._sockets.append(socket)
            self.endpoints.append(f"tcp://127.0.0.1:{port}")
        self._next_seq = [0] * num_engines
        self._turn = 0

    def fill(self) -> None:
        """Wait for each subscription, then fill the caches, slowly enough for any router."""
        for socket in self._sockets:
            socket.recv()
        for at in range(HELD_BATCHES):
            for engine, ring in enumerate(self._rings):
                self._send(engine, ring.filling[at])
            time.sleep(TICK_S)
        self.sent.blocks_stored = self.sent.batches * BLOCKS_PER_BATCH

    def publish(self) -> None:
        """The next batch of the next engine."""
        engine = self._turn
        self._turn = (engine + 1) % len(self._sockets)
        at = (self._next_seq[engine] - HELD_BATCHES) % RING_BATCHES
        self._send(engine, self._rings[engine].turning[at])
        self.sent.blocks_stored += BLOCKS_PER_BATCH
        self.sent.blocks_removed += BLOCKS_PER_BATCH

    def _send(self, engine: int, payload: bytes) -> None:
        seq = self._next_seq[engine]
        self._next_seq[engine] = seq + 1
        self._sockets[engine].send_multipart((b"", seq.to_bytes(8, "big"), payload), copy=False)
        self.sent.batches += 1

    def run(self) -> None:
        """Publish at the rate that was told last, until the input ends."""
        period_s, due = 0.0, time.monotonic()
        while True:
            if select.select([sys.stdin], [], [], TICK_S if period_s else None)[0]:
                line = sys.stdin.readline()
                if not line:
                    break
                rate = float(line)
                period_s, due = BLOCKS_PER_BATCH / rate if rate else 0.0, time.monotonic()
                print(msgspec.json.encode(self.sent).decode(), flush=True)
            now = time.monotonic()
            if period_s:
                self.sent.late_s = max(self.sent.late_s, now - due - TICK_S)
            while period_s and due <= now:
                self.publish()
                due += period_s
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()


def main() -> int:
    """Tell the endpoints, fill the caches, tell that, then publish as told."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engines", type=int, required=True)
    publisher = Publisher(parser.parse_args().engines)
    print(msgspec.json.encode(publisher.endpoints).decode(), flush=True)
    publisher.fill()
    print(msgspec.json.encode(publisher.sent).decode(), flush=True)
    publisher.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
