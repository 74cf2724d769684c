"""A reader's session of the wire, and what can happen to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.wire_scripts import Do, Said, messages_in
from transload_abi.wire import auth, codec, frames, messages
from transload_abi.wire.deadlines import ReaderDeadlines
from transload_abi.wire.reader import ReaderSession
from transload_abi.wire.reader_events import Data
from transload_abi.wire.reader_state import ReaderSettings

SESSION = "5e" * 16
NONCE = "cd" * 32
HOLDER_NONCE = "ab" * 32
DEADLINES = ReaderDeadlines(opening_s=10.0, answer_s=20.0, stall_s=30.0, read_s=100.0, idle_s=200.0)


@dataclass(frozen=True)
class Bytes:
    """`Data`, copied: a view is of no use once more was fed."""

    read: int
    offset: int
    data: bytes


class ReaderWorld:
    """One session."""

    def __init__(
        self,
        token: bytes = b"",
        descriptor: bytes | None = b"ours",
        holder_generation: str = "g1",
        features: tuple[str, ...] = ("a", "b"),
    ) -> None:
        self.now = 0.0
        settings = ReaderSettings(
            "D",
            "g7",
            descriptor,
            token,
            max_data_bytes=8192,
            features=features,
            holder_generation=holder_generation,
            deadlines=DEADLINES,
        )
        self.session = ReaderSession(settings, NONCE, 0.0)
        self.hello_body = b""
        self._told: list[object] = []

    @property
    def state(self) -> str:
        return self.session.state

    def call(self, what: Callable[[ReaderSession, float], Any]) -> None:
        """Do something to the session, and note what it says of it."""
        said = what(self.session, self.now)
        if isinstance(said, list):
            self._told += [
                Bytes(each.read, each.offset, bytes(each.data)) if isinstance(each, Data) else each
                for each in said
            ]
        elif said is not None:
            self._told.append(Said(said))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.call(lambda session, now: session.tick(now))

    def tells(self) -> list[object]:
        sent = self.session.data_to_send()
        told: list[object] = list(messages_in(sent, "reader"))
        if told and isinstance(told[0], messages.Hello):
            self.hello_body = sent[frames.HEADER_BYTES :]
        told += self._told
        self._told = []
        return told


# What can happen.


def begins() -> Do:
    return Do("begins", lambda world: world.call(lambda session, now: session.begin(now)))


def asks(name: str, *args: Any) -> Do:
    """Call a method of the session, the time last."""
    return Do(
        f"{name}{args}",
        lambda world: world.call(lambda session, now: getattr(session, name)(*args, now)),
    )


def hears(message: messages.Message, stream: int = 0) -> Do:
    data = codec.encode(message)
    return Do(f"{message!r} on {stream}", lambda world: _feed(world, stream, data))


def welcomed(message: messages.Welcome, token: bytes = b"") -> Do:
    """The welcome, with the right proof for a token."""

    def does(world: ReaderWorld) -> None:
        digest = auth.transcript(world.hello_body, codec.encode_body(message))
        fields = {each: getattr(message, each) for each in message.__struct_fields__}
        proven = messages.Welcome(**fields | {"proof": auth.holder_proof(token, digest)})
        _feed(world, 0, codec.encode(proven))

    return Do(f"{message!r} proven by {token!r}", does)


def hears_descriptor(body: bytes) -> Do:
    data = frames.descriptor_frame(body)
    return Do(f"descriptor {body!r}", lambda world: _feed(world, 0, data))


def hears_bytes(data: bytes, stream: int = 0) -> Do:
    return Do(f"bytes {data!r} on {stream}", lambda world: _feed(world, stream, data))


def hears_data(
    read: int, offset: int, data: bytes, stream: int = 0, checksum: int | None = None
) -> Do:
    frame = frames.data_header(read, offset, len(data), checksum) + data
    name = f"data of {read} at {offset}: {data!r} on {stream}, checksum {checksum}"
    return Do(name, lambda world: _feed(world, stream, frame))


def begins_data(read: int, offset: int, num_bytes: int, stream: int = 0) -> Do:
    """The header of a data frame alone."""
    header = frames.data_header(read, offset, num_bytes)
    name = f"header of {num_bytes} bytes of {read} at {offset} on {stream}"
    return Do(name, lambda world: _feed(world, stream, header))


def loses(stream: int = 0) -> Do:
    return Do(
        f"loses {stream}",
        lambda world: world.call(lambda session, now: session.lose(stream, now)),
    )


def waits(seconds: float) -> Do:
    return Do(f"waits {seconds}", lambda world: world.pass_time(seconds))


def _feed(world: ReaderWorld, stream: int, data: bytes) -> None:
    world.call(lambda session, now: session.feed(stream, data, now))
