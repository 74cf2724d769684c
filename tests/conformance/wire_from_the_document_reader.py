"""A reader of `connector/WIRE.md` over sockets, in one thread that waits for all its streams.

Numbers in comments are the document's sections.
"""

import contextlib
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from conformance.wire_from_the_document_descriptor import Judge, Tree, judge, read_descriptor
from conformance.wire_from_the_document_frames import (
    DATA,
    DESCRIPTOR,
    MAX_DESCRIPTOR_BYTES,
    MAX_MESSAGE_BYTES,
    Frame,
    is_proof,
    prove,
    prove_stream,
    transcript,
    write_frame,
)
from conformance.wire_from_the_document_messages import (
    ANSWERS,
    MESSAGES,
    Message,
    decode_message,
    encode_message,
)
from conformance.wire_from_the_document_packing import RefusedError
from conformance.wire_from_the_document_payload import check_read, num_payload_bytes
from conformance.wire_from_the_document_reads import Read
from conformance.wire_from_the_document_streams import (
    ClosedError,
    Stream,
    WrongError,
    message_frame,
)


class EndedError(Exception):
    """The session is over; `message` is the holder's last word, if it was one."""

    def __init__(self, reason: str, message: Message | None = None) -> None:
        super().__init__(reason)
        self.message = message


@dataclass
class Settings:
    """What a reader says of itself, what it takes, and how long it waits (11)."""

    generation: str = "1"
    engine: str = "reader"
    max_data_bytes: int = 1_048_576
    nonce: str = ""
    judge: Judge = judge
    may_lossy: bool = False
    features: tuple[str, ...] = ()
    opening_s: float = 30.0
    answer_s: float = 10.0
    next_byte_s: float = 30.0
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Lease:
    """How long a handoff is held, counted from when this side asked."""

    asked_at: float
    expires_s: float

    @property
    def renew_at(self) -> float:
        return self.asked_at + self.expires_s / 2


class Reader:
    """One session. Without a `twin` of a descriptor it may `forgo` alone."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        token: bytes,
        twin: bytes | None,
        settings: Settings | None = None,
    ) -> None:
        self.token = token
        self.settings = settings or Settings()
        self.verdict = ""
        self.welcome: Message = {}
        self.holder: Tree = {}
        self.reads: dict[int, Read] = {}
        self.answers: dict[int, Message] = {}
        self.leases: dict[str, Lease] = {}
        self._connect = connect
        self._twin = twin
        self._asked: dict[int, tuple[Message, float]] = {}
        self._last_id = 0
        self._key = b""
        self._control = Stream(connect())
        self._streams: dict[int, Stream] = {0: self._control}
        self._has_ended = False

    # --- 3, 4: the opening ---

    def start(self) -> None:
        """Open the session; raises `EndedError` where either side will not."""
        deadline = time.monotonic() + self.settings.opening_s
        with self._watched():
            digest = self._greet(deadline)
            self._control.say("reader", "prove", proof=prove(self.token, "reader", digest).hex())
            self._key = prove(self.token, "session", digest)
            if self._twin is None:
                return
            self._control.send(write_frame(DESCRIPTOR, self._twin))
            self.verdict = self._hear("accept", deadline)["verdict"]
            self._control.frames.max_descriptor_bytes = MAX_DESCRIPTOR_BYTES
            self._take_descriptor(deadline)
            self._control.frames.max_descriptor_bytes = 0
            self._control.frames.max_data_bytes = self.welcome["max_data_bytes"]

    def _greet(self, deadline: float) -> bytes:
        settings = self.settings
        hello = {
            "type": "hello",
            "versions": [1],
            "engine": settings.engine,
            "generation": settings.generation,
            "nonce": settings.nonce or secrets.token_hex(32),
            "max_data_bytes": settings.max_data_bytes,
            "features": list(settings.features),
        }
        body = encode_message(hello, "reader")
        self._control.send(write_frame(1, body))
        frame = self._control.receive(deadline)
        self.welcome = welcome = self._only(decode_message(frame.body, "holder"), "welcome")
        digest = transcript(body, frame.body)
        if not is_proof(self.token, welcome["proof"], prove(self.token, "holder", digest)):
            raise WrongError("", "welcome.proof: the holder has another token")
        if welcome["version"] != 1 or not {*welcome["features"]} <= {*settings.features}:
            raise WrongError("", "welcome: a version or a feature that was not offered")
        if welcome["max_data_bytes"] > settings.max_data_bytes:
            raise WrongError("", "welcome.max_data_bytes: more than was offered")
        self._control.frames.max_message_bytes = MAX_MESSAGE_BYTES
        return digest

    def _hear(self, wanted: str, deadline: float) -> Message:
        return self._only(self._control.hear("holder", deadline), wanted)

    def _only(self, message: Message, wanted: str) -> Message:
        if message["type"] == wanted:
            return message
        if message["type"] in ("refuse", "error", "bye"):
            raise EndedError(str(message), message)
        raise WrongError("", f"{message['type']} may not be said now")

    def _take_descriptor(self, deadline: float) -> None:
        frame = self._control.receive(deadline)
        if frame.kind != DESCRIPTOR:
            self._only(decode_message(frame.body, "holder"), "a descriptor")
        assert self._twin is not None
        self.holder = read_descriptor(frame.body)
        found, path = self.settings.judge(self.holder, read_descriptor(self._twin))
        if found != self.verdict:
            raise WrongError("", f"accept.verdict: {self.verdict}, and not {found} {path}")
        if found == "lossy" and not self.settings.may_lossy:
            raise WrongError("", "a lossy conversion is not allowed here")

    def attach(self, number: int) -> Message:
        """Attach a data stream; `attached` or `error`."""
        stream = Stream(self._connect())
        session = self.welcome["session"]
        proof = prove_stream(self._key, session, number).hex()
        deadline = time.monotonic() + self.settings.answer_s
        with self._watched(), contextlib.ExitStack() as opened:
            opened.callback(stream.close)
            stream.say("reader", "attach", session=session, stream=number, proof=proof)
            answer = stream.hear("holder", deadline)
            if answer["type"] == "error":
                return answer
            if self._only(answer, "attached")["stream"] != number:
                raise WrongError("", "attached.stream: another one")
            stream.frames.max_data_bytes = self.welcome["max_data_bytes"]
            self._streams[number] = stream
            opened.pop_all()
        return answer

    # --- 5, 7: requests ---

    def ask(self, kind: str, **fields: Any) -> int:
        """Say a request; its id."""
        message = self._request(kind, fields)
        with self._watched():
            self._control.say("reader", kind, **{k: v for k, v in message.items() if k != "type"})
        return int(message["id"])

    def _request(self, kind: str, fields: Message) -> Message:
        self._last_id += 1
        known = MESSAGES["reader"][kind]
        defaults = {name: default for name, (_, default) in known.items()}
        message = {**defaults, "type": kind, "id": self._last_id, **fields}
        self._asked[self._last_id] = (message, self.settings.clock())
        return message

    def answer(self, number: int) -> Message:
        """Wait for the answer to a request that is no read."""
        if not self._pump(lambda: number in self.answers, self.settings.answer_s):
            self._fail(f"no answer to {self._asked[number][0]['type']} in time")
        return self.answers[number]

    def open(self, handoff: str, lease: str, reader: str, generation: str = "") -> Message:
        """Take a share; `generation` is the one that was told along with the handoff."""
        if generation and generation != self.welcome["generation"]:
            raise ValueError(f"the handoff is of generation {generation!r}, and that has gone")
        return self.answer(self.ask("open", handoff=handoff, lease=lease, reader=reader))

    def about(self, kind: str, handoff: str) -> Message:
        """`confirm`, `renew`, `done` or `release`."""
        return self.answer(self.ask(kind, handoff=handoff))

    def map(self, handoff: str, table: int, blocks: list[list[int]]) -> Message:
        """Where blocks are (16)."""
        return self.answer(self.ask("map", handoff=handoff, table=table, blocks=blocks))

    def forgo(self, handoff: str, lease: str) -> Message:
        return self.answer(self.ask("forgo", handoff=handoff, lease=lease))

    def bye(self, reason: str = "") -> None:
        self._close(message_frame("reader", "bye", reason=reason))

    # --- 8, 9: reads ---

    def read(self, handoff: str, group: str, blocks: list[list[int]], **fields: Any) -> int:
        """Ask for blocks; the id of the read. Refuses what the holder would have to."""
        number = self._last_id + 1
        message = self._request("read", {"handoff": handoff, "group": group, "blocks": blocks})
        message |= fields
        check_read(self.holder, message)
        self.reads[number] = Read(message, num_payload_bytes(self.holder, message))
        with self._watched():
            self._control.send(write_frame(1, encode_message(message, "reader")))
        return number

    def cancel(self, number: int) -> None:
        with self._watched():
            self._control.say("reader", "cancel", id=number)

    def pump_until_bytes(self, number: int, count: int) -> bool:
        """Whether so many bytes of a read came before it was over."""
        read = self.reads[number]
        wait_s = self.settings.next_byte_s
        self._pump(lambda: read.num_received >= count or read.is_over, wait_s)
        return read.num_received >= count

    def listen(self, timeout_s: float) -> None:
        """Take what comes, unasked."""
        self._pump(lambda: False, timeout_s)

    def finish(self, number: int) -> bytes | None:
        """Wait until a read is over; its payload if it is complete."""
        read = self.reads[number]
        wait_s = self.settings.next_byte_s
        while not read.is_over:
            seen = read.num_received
            self._pump(_has_more(read), wait_s)
            if not read.is_over and read.num_received == seen:
                read.failed = read.failed or "the next byte did not come in time"
                self._give_up(read)
        return bytes(read.data) if read.is_complete else None

    def _give_up(self, read: Read) -> None:
        if read.answer is None:
            self.cancel(read.message["id"])
            if not self._pump(lambda: read.answer is not None, self.settings.answer_s):
                self._fail("no answer to cancel in time")

    # --- what comes ---

    def _pump(self, is_there: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._watched():
            for number in list(self._streams):
                self._take_frames(number)
            while not is_there():
                self._renew_in_time()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                sockets = {stream.socket: n for n, stream in self._streams.items()}
                due = [lease.renew_at - self.settings.clock() for lease in self.leases.values()]
                wait_s = max(0.0, min([left, *(x for x in due if x > 0)]))
                for ready in select.select(list(sockets), [], [], wait_s)[0]:
                    self._fill(sockets[ready])
        return True

    def _fill(self, number: int) -> None:
        stream = self._streams[number]
        try:
            stream.fill()
        except ClosedError as error:
            if number == 0:
                raise
            del self._streams[number]
            stream.close()
            for read in self.reads.values():
                if read.message["stream"] == number:
                    read.stream_is_lost = True
                    read.failed = read.failed or ("" if read.is_complete else str(error))
            return
        self._take_frames(number)

    def _take_frames(self, number: int) -> None:
        stream = self._streams[number]
        while (frame := stream.frames.next()) is not None:
            if frame.kind == DATA:
                self._take_data(frame, number)
            elif number:
                raise WrongError("", "a message on a data stream")
            else:
                self._take_message(decode_message(frame.body, "holder"))

    def _take_data(self, frame: Frame, number: int) -> None:
        read = self.reads.get(frame.read)
        if read is None:
            raise WrongError("", f"data of {frame.read}, which is no read")
        had_failed = bool(read.failed)
        read.take(frame, number)
        if read.failed and not had_failed and read.answer is None:
            self.cancel(frame.read)

    def _take_message(self, message: Message) -> None:
        number = message.get("id", 0)
        if message["type"] == "bye" or (message["type"] == "error" and number == 0):
            raise EndedError(str(message), message)
        if number not in self._asked:
            raise WrongError("", f"{message['type']}: an answer to what was not asked")
        asked, at = self._asked.pop(number)
        if message["type"] not in ANSWERS[asked["type"]]:
            raise WrongError("", f"{message['type']} is no answer to {asked['type']}")
        if message["type"] == "mapped" and _count(message["blocks"]) != _count(asked["blocks"]):
            raise WrongError("", "mapped.blocks: other blocks than were asked for")
        self.answers[number] = message
        handoff = asked["handoff"]
        if message["type"] == "expired" or asked["type"] in ("done", "release", "forgo"):
            self.leases.pop(handoff, None)
        elif message["type"] in ("lease", "confirmed"):
            self.leases[handoff] = Lease(at, message["expires_ms"] / 1000)
        if asked["type"] == "read":
            self._end_read(self.reads[number], message)

    def _end_read(self, read: Read, message: Message) -> None:
        read.answer = message
        if message["type"] != "read_end" or read.failed:
            return
        is_short = read.message["stream"] == 0 and not read.is_complete
        if is_short or message["num_bytes"] != read.num_bytes:
            read.failed = "read_end: other bytes than were asked for"

    def _renew_in_time(self) -> None:
        now = self.settings.clock()
        for handoff, lease in self.leases.items():
            if now >= lease.renew_at:
                left = max(0.0, lease.asked_at + lease.expires_s - now)
                self.leases[handoff] = Lease(now, left)  # asks again at half of what is left
                self.ask("renew", handoff=handoff)

    # --- ends ---

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """End the session where the holder is wrong, or gone."""
        if self._has_ended:
            raise EndedError("the session has ended")
        try:
            yield
        except (RefusedError, WrongError) as error:
            self._fail(str(error))
        except ClosedError as error:
            self._close()
            raise EndedError(str(error)) from error
        except EndedError:
            self._close()
            raise

    def _fail(self, reason: str) -> NoReturn:
        self.bye(reason[:500])
        raise EndedError(reason)

    def _close(self, last: bytes = b"") -> None:
        if self._has_ended:
            return
        self._has_ended = True
        for number, stream in self._streams.items():
            if number:
                stream.close()
        self._control.close_after(last)


def _count(ranges: list[list[int]]) -> int:
    return sum(count for _, count in ranges)


def _has_more(read: Read) -> Callable[[], bool]:
    seen = read.num_received
    return lambda: read.is_over or read.num_received > seen
