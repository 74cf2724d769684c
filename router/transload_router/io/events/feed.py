"""One publisher's sockets, and its stream between them and the index."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from transload_router.core.kv_events.events import Event
from transload_router.core.kv_events.messages import (
    Apply,
    Clear,
    Command,
    Count,
    Live,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    RequestReplay,
    StateChanged,
    StreamState,
    Subscribed,
    Unnumbered,
)
from transload_router.core.kv_events.messages import Event as StreamEvent
from transload_router.core.kv_events.stream import EventStream
from transload_router.io.events.frames import END, read_frames, replay_request
from transload_router.io.events.sources import Source

# Of a batch; what is more waits for its turn. About a millisecond at 3.5 us an event of one block
# (bench/flood.py); a step of vLLM has a few hundred.
MAX_EVENTS_AT_ONCE = 256

# Engine id and data-parallel rank.
Key = tuple[str, int]


class Sink(Protocol):
    """Where events go. Called from the event loop; must not block, nor call back."""

    def apply(self, key: Key, event: Event) -> None:
        """Bring one event into the index."""

    def clear(self, key: Key) -> None:
        """Forget everything that this destination holds."""

    def set_state(self, key: Key, state: StreamState, reason: str) -> None:
        """How much is known of it from now on; reasons are of a small fixed set."""

    def count(self, key: Key, what: str, amount: int) -> None:
        """Something happened that operators count; of a small fixed set."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one subscriber may use.

    Attributes:
        slice_s: Work per turn of the event loop, over all publishers; a message more at most. A
            request waits for it at each of its turns: beside 100,000 blocks/s its median grew by
            0.3 ms, and by 0.4 ms with slices of 0.5 ms (one run of two windows each,
            bench/flood.py). Shorter than a message of 32 blocks, 0.1 ms, a slice only adds turns.
        replay_silence_s: Without a batch of a replay for so long, the rest will not come. vLLM
            looks for requests every 0.1 s.
        replay_total_s: How long one answer may take.
        max_live_queue: Live messages waiting in ZMQ per publisher. Beyond it the network's
            buffers fill, then the publisher drops, and the stream sees a gap.
        max_replay_queue: Likewise for a replay, twice what vLLM keeps.
        max_message_bytes: Longer messages end the connection.
        heartbeat_s: A connection on which three heartbeats are not answered is dead.
        reconnect_s, reconnect_max_s: Pauses between attempts to reach a publisher.
    """

    slice_s: float = 0.0001
    replay_silence_s: float = 5.0
    replay_total_s: float = 60.0
    max_live_queue: int = 10_000
    max_replay_queue: int = 20_000
    max_message_bytes: int = 64 << 20
    heartbeat_s: float = 10.0
    reconnect_s: float = 0.1
    reconnect_max_s: float = 5.0


class _Reader:
    """A socket whose messages are taken one at a time, whenever its turn comes.

    ZMQ's descriptor tells of changes, not of messages: it is read off at once, so that it does not
    wake the loop again, and `may_have` stays True until the socket was found empty.
    """

    __slots__ = ("_loop", "_wake", "fd", "may_have", "socket")

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        self.socket = socket
        self.may_have = True
        self.fd = socket.fileno()
        self._loop = loop
        self._wake = wake
        loop.add_reader(self.fd, self._on_change)

    def take(self) -> list[bytes] | None:
        """The next message's frames, or None."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            self.may_have = False
            return None

    def has_message(self) -> bool:
        """Whether a message waits."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def close(self) -> None:
        """Close the socket; what waits is lost."""
        self._loop.remove_reader(self.fd)
        self.socket.close(linger=0)

    def _on_change(self) -> None:
        if self.has_message():
            self.may_have = True
            self._wake()


class Feed:
    """One publisher: SUB, its monitor, and a DEALER while a replay is under way.

    A publisher that was restarted is noticed by the monitor (a connection that is made anew has
    lost what was published in between), by sequences, and by what a replay begins with.
    """

    __slots__ = (
        "_asked_at",
        "_backlog",
        "_context",
        "_heard_at",
        "_limits",
        "_live",
        "_loop",
        "_monitor",
        "_replay",
        "_sink",
        "_timer",
        "_wake",
        "key",
        "source",
        "stream",
    )

    def __init__(
        self,
        key: Key,
        source: Source,
        sink: Sink,
        limits: Limits,
        context: zmq.Context[zmq.Socket[bytes]],
        wake: Callable[["Feed"], None],
    ) -> None:
        self.key = key
        self.source = source
        self.stream = EventStream()
        self._sink = sink
        self._limits = limits
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._backlog: deque[Command | Event] = deque()
        self._replay: _Reader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at = self._heard_at = 0.0
        socket = self._socket(zmq.SUB, limits.max_live_queue)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        events = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
        self._monitor: _Reader | None = self._reader(socket.get_monitor_socket(events))
        self._live: _Reader | None = self._reader(socket)
        try:
            socket.connect(source.endpoint)
        except zmq.ZMQError:
            self.close()
            raise
        sink.set_state(key, StreamState.COLD, "added")

    def close(self) -> None:
        """End all; nothing reaches the sink from now on."""
        self._backlog.clear()
        self._abandon_replay()
        if self._live is not None and self._monitor is not None:
            self._live.socket.disable_monitor()
            self._monitor.close()
            self._live.close()
        self._live = self._monitor = None

    def pump(self) -> bool:
        """Go on with a long batch, or take a message.

        Returns:
            Whether there was one, and so may be more.
        """
        if self._backlog:
            self._work_off()
            return True
        return self._take_monitored() or self._take_replayed() or self._take_live()

    def _take_monitored(self) -> bool:
        if self._monitor is None or not self._monitor.may_have:
            return False
        frames = self._monitor.take()
        if frames is None:
            return False
        if parse_monitor_message(frames)["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
            self.handle(Subscribed())
        else:
            self._sink.count(self.key, "disconnected", 1)
        return True

    def _take_replayed(self) -> bool:
        if self._replay is None or not self._replay.may_have:
            return False
        frames = self._replay.take()
        if frames is None:
            return False
        self._heard_at = time.monotonic()
        seq, payload = read_frames(frames)
        if seq is None:
            self._sink.count(self.key, "bad_message", 1)
        elif seq == END:
            self._abandon_replay()
            self.handle(ReplayEnded())
        else:
            self.handle(Replayed(seq, payload))
        return True

    def _take_live(self) -> bool:
        if self._live is None or not self._live.may_have or self._is_paused():
            return False
        frames = self._live.take()
        if frames is None:
            return False
        seq, payload = read_frames(frames)
        if seq is None:
            self.handle(Unnumbered(payload))
        elif seq == END:
            self._sink.count(self.key, "bad_message", 1)
        else:
            self.handle(Live(seq, payload))
        return True

    def _is_paused(self) -> bool:
        """Live messages wait in ZMQ while a replay is under way and the stream holds enough."""
        return self.stream.state is StreamState.REPLAYING and not self.stream.wants_live

    @property
    def is_behind(self) -> bool:
        """Whether the sink has not been told yet all that the stream knows."""
        return bool(self._backlog)

    def handle(self, event: StreamEvent) -> None:
        """Tell the stream, and do what it says, in its turn if there is much of it."""
        is_behind = self.is_behind
        for command in self.stream.handle(event):
            if isinstance(command, Apply):
                self._backlog.extend(command.batch.events)
            else:
                self._backlog.append(command)
        if is_behind:
            return
        self._work_off()
        if self.is_behind:
            self._wake(self)

    def _work_off(self) -> None:
        """Do a slice of what the stream said."""
        num_left = MAX_EVENTS_AT_ONCE
        while self._backlog and num_left:
            num_left -= 1
            self._perform(self._backlog.popleft())

    def _perform(self, command: Command | Event) -> None:
        match command:
            case Clear():
                self._sink.clear(self.key)
            case Count(what, amount):
                self._sink.count(self.key, what, amount)
            case RequestReplay(first_seq):
                if not self._ask(first_seq):
                    self.handle(ReplayFailed())
            case StateChanged(state, reason):
                if state is not StreamState.REPLAYING:
                    self._abandon_replay()
                self._sink.set_state(self.key, state, reason)
            case Apply():
                raise AssertionError("its events stand for it")
            case _:
                self._sink.apply(self.key, command)

    def _ask(self, first_seq: int) -> bool:
        """Ask for a replay; False where there is nobody to ask."""
        self._abandon_replay()
        if self.source.replay_endpoint is None:
            return False
        # A socket of its own, so that no late answer to an earlier request is taken for this one's.
        socket = self._socket(zmq.DEALER, self._limits.max_replay_queue)
        self._replay = self._reader(socket)
        try:
            socket.connect(self.source.replay_endpoint)
            socket.send_multipart(replay_request(first_seq), zmq.NOBLOCK)
        except zmq.ZMQError:
            self._abandon_replay()
            return False
        self._asked_at = self._heard_at = time.monotonic()
        self._timer = self._loop.call_later(self._limits.replay_silence_s, self._check_replay)
        return True

    def _check_replay(self) -> None:
        """See whether the answer goes on; a batch that waits for its turn is not silence."""
        now = time.monotonic()
        if self.is_behind or (self._replay is not None and self._replay.has_message()):
            self._heard_at = now
        rest_s = (
            min(
                self._heard_at + self._limits.replay_silence_s,
                self._asked_at + self._limits.replay_total_s,
            )
            - now
        )
        if rest_s > 0:
            self._timer = self._loop.call_later(rest_s, self._check_replay)
            return
        self._abandon_replay()
        self.handle(ReplayFailed())
        self._wake(self)

    def _abandon_replay(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _reader(self, socket: zmq.Socket[bytes]) -> _Reader:
        return _Reader(socket, self._loop, lambda: self._wake(self))

    def _socket(self, kind: int, queue: int) -> zmq.Socket[bytes]:
        limits = self._limits
        socket = self._context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),
            (zmq.RCVHWM, queue),
            (zmq.MAXMSGSIZE, limits.max_message_bytes),
            (zmq.RECONNECT_IVL, round(limits.reconnect_s * 1000)),
            (zmq.RECONNECT_IVL_MAX, round(limits.reconnect_max_s * 1000)),
            (zmq.HEARTBEAT_IVL, round(limits.heartbeat_s * 1000)),
            (zmq.HEARTBEAT_TIMEOUT, round(limits.heartbeat_s * 3000)),
        ):
            socket.setsockopt(option, value)
        return socket
