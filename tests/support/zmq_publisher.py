"""A publisher of KV events with vLLM's framing over real sockets, and scripted faults.

Not vLLM's code: what `vllm/distributed/kv_events.py:ZmqEventPublisher` does on the wire (PUB and
ROUTER, sequence from 0, replay from a buffer, end marker -1), answered from the test's own loop.
"""

import asyncio
from collections import deque

import msgspec
import zmq
import zmq.asyncio

END = b"\xff" * 8


class ZmqPublisher:
    """One rank's publisher on loopback.

    Attributes:
        published: Payloads by sequence, whether sent or lost.
        num_requests: Replay requests that came.
        lose: Sequences that are not sent live, though they can be replayed.
        withhold: Sequences that replays leave out.
        has_topic: Whether replayed messages carry the topic (vLLM from 0.28).
        answers: Whether replay requests are answered.
        ends: Whether answers have an end marker.
    """

    def __init__(
        self,
        port: int = 0,
        replay_port: int = 0,
        *,
        buffer_steps: int = 10_000,
        hwm: int = 100_000,
    ) -> None:
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub.set_hwm(hwm)
        self.router = self.context.socket(zmq.ROUTER)
        # As the real one does: on shutdown nothing lingers.
        self.pub.linger = self.router.linger = 0
        self.pub.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.router.bind(f"tcp://127.0.0.1:{replay_port or '*'}")
        self.endpoint = self.pub.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.replay_endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.published: list[bytes] = []
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self.num_requests = 0
        self.lose: set[int] = set()
        self.withhold: set[int] = set()
        self.has_topic = True
        self.answers = True
        self.ends = True
        self.topic = b"kv@p1@tiny"
        self._task = asyncio.get_running_loop().create_task(self._serve_replay())

    @property
    def ports(self) -> tuple[int, int]:
        """Live and replay, for a publisher that takes this one's place."""
        return (
            int(self.endpoint.rpartition(":")[2]),
            int(self.replay_endpoint.rpartition(":")[2]),
        )

    async def publish(self, payload: bytes) -> int:
        """Publish a batch and keep it for replays; its sequence."""
        seq = len(self.published)
        self.published.append(payload)
        self.buffer.append((seq, payload))
        if seq not in self.lose:
            await self.send(self.topic, seq.to_bytes(8, "big"), payload)
        return seq

    async def send(self, *frames: bytes) -> None:
        """Send a message as it is."""
        await self.pub.send_multipart(frames)

    async def close(self) -> None:
        """Be gone, as by SIGKILL; what was not sent yet is lost."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self.pub.close()
        self.router.close()
        self.context.term()

    async def _serve_replay(self) -> None:
        while True:
            client, _, first = await self.router.recv_multipart()
            self.num_requests += 1
            if not self.answers:
                continue
            topic = [self.topic] if self.has_topic else []
            for seq, payload in list(self.buffer):
                if seq >= int.from_bytes(first, "big") and seq not in self.withhold:
                    frames = [client, b"", *topic, seq.to_bytes(8, "big"), payload]
                    await self.router.send_multipart(frames)
            if self.ends:
                empty = [b""] if self.has_topic else []
                await self.router.send_multipart([client, b"", *empty, END, b""])


def batch(timestamp_s: float, *events: object, rank: int = 0) -> bytes:
    """A payload."""
    return msgspec.msgpack.encode([timestamp_s, list(events), rank])


def stored(*hashes: int, parent: int | None = None) -> dict[str, object]:
    """Blocks of one token each, the token being the hash."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(hashes),
        "block_size": 1,
    }


def removed(*hashes: int) -> dict[str, object]:
    """One copy of each is gone."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


CLEARED: dict[str, object] = {"type": "AllBlocksCleared"}
