"""Events over ZMQ as vLLM 0.32.0 publishes them (`vllm/distributed/kv_events.py`).

**Rules**

* Each message is `[topic, number, payload]`; numbers are 8 bytes, big-endian, from 0.
* A replay is asked for with `[b"", first number]` and answered with `[b"", topic, number, payload]`
  for each message still kept, then `[b"", b"", ff * 8, b""]`.
"""

import asyncio
from collections import deque

import zmq

END_OF_REPLAY = b"\xff" * 8
BUFFER_STEPS = 10_000
"""Messages kept for replay: vLLM's default `buffer_steps`."""
HIGH_WATER = 100_000
"""Messages kept for a slow subscriber: vLLM's default `hwm`."""


class EventPublisher:
    """One rank's publisher. Belongs to one event loop; close it before its context ends.

    Attributes:
        drops: Whether messages are numbered and kept, and not sent.
        keeps: Whether messages can be replayed.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        replay_endpoint: str,
        topic: str,
        buffer_steps: int = BUFFER_STEPS,
    ) -> None:
        self.drops = False
        self.keeps = True
        self._topic = topic.encode()
        self._number = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)
        self._publisher = context.socket(zmq.PUB)
        self._publisher.set_hwm(HIGH_WATER)
        self._replay = context.socket(zmq.ROUTER)
        self.endpoint = _bind(self._publisher, endpoint)
        self.replay_endpoint = _bind(self._replay, replay_endpoint)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._replay.fileno(), self._serve_replays)

    def publish(self, payload: bytes) -> None:
        """Send one step's events."""
        number = self._number.to_bytes(8, "big")
        self._number += 1
        if self.keeps:
            self._kept.append((number, payload))
        if not self.drops:
            self._publisher.send_multipart((self._topic, number, payload), zmq.NOBLOCK)
        self._serve_replays()

    def _serve_replays(self) -> None:
        """Answer all that were asked; ZMQ's descriptor tells of changes only."""
        while self._replay.poll(0):
            frames = self._replay.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 3:
                continue
            reader, _, first = frames
            for number, payload in self._kept if self.keeps else ():
                if number >= first:
                    self._replay.send_multipart((reader, b"", self._topic, number, payload))
            self._replay.send_multipart((reader, b"", b"", END_OF_REPLAY, b""))

    def close(self) -> None:
        """Free the ports."""
        self._loop.remove_reader(self._replay.fileno())
        self._publisher.close(linger=0)
        self._replay.close(linger=0)


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    socket.bind(endpoint)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def advertised(endpoint: str) -> str:
    """A bound endpoint as `/kv_event_sources` tells it: all interfaces are a star in vLLM."""
    return endpoint.replace("//0.0.0.0:", "//*:")
