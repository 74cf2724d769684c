"""A holder of `connector/WIRE.md`: a thread for each stream, and one more that sends its reads.

Numbers in comments are the document's sections.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from conformance.wire_from_the_document_descriptor import Judge, judge, read_descriptor
from conformance.wire_from_the_document_frames import (
    DESCRIPTOR,
    MAX_DESCRIPTOR_BYTES,
    MAX_MESSAGE_BYTES,
    MESSAGE,
    is_proof,
    prove,
    prove_stream,
    transcript,
    write_frame,
)
from conformance.wire_from_the_document_leases import Leases
from conformance.wire_from_the_document_messages import decode_message, encode_message
from conformance.wire_from_the_document_packing import RefusedError
from conformance.wire_from_the_document_payload import Message
from conformance.wire_from_the_document_service import Cut, Service, Store
from conformance.wire_from_the_document_streams import (
    ClosedError,
    Stream,
    WrongError,
    message_frame,
)

OPENING_S: Final = 30.0  # 11


@dataclass
class Settings:
    """What a holder says of itself, and how it cuts data; names drawn anew where empty."""

    generation: str = "1"
    engine: str = "holder"
    max_data_bytes: int = 65_536
    max_streams: int = 4
    nonce: str = ""
    session: str = ""
    cut: Cut | None = None
    judge: Judge = judge
    features: tuple[str, ...] = ()


class Holder:
    """Serves connections; `memory` has the bytes of each pool of the descriptor by its id."""

    def __init__(
        self,
        token: bytes,
        twin: bytes,
        memory: Mapping[str, bytes],
        leases: Leases,
        settings: Settings | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self.token = token
        self.twin = twin
        self.store = Store(read_descriptor(twin), memory, leases, files or {})
        self.settings = settings or Settings()
        self.sessions: dict[str, _Session] = {}
        self._listener: socket.socket | None = None
        self._streams: list[Stream] = []

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Serve who connects, until `close`; the port."""
        self._listener = socket.create_server((host, port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return int(self._listener.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for stream in list(self._streams):
            stream.close()

    def serve(self, connection: socket.socket) -> None:
        """Serve one stream to its end."""
        stream = Stream(connection)
        self._streams.append(stream)
        try:
            body, first = hear(stream, time.monotonic() + OPENING_S)
            if first["type"] == "hello":
                _Session(self, stream, body, first).run()
            elif first["type"] == "attach":
                self._attach(stream, first)
            else:
                raise WrongError("out_of_turn", f"{first['type']} begins no stream")
        except WrongError as error:
            fields = {"code": error.code, "reason": str(error)[:500]}
            stream.close_after(message_frame("holder", "error", **fields))
        except ClosedError:
            stream.close()
        finally:
            self._streams.remove(stream)

    def _attach(self, stream: Stream, message: Message) -> None:
        number = message["stream"]
        session = self.sessions.get(message["session"])
        if session is None:
            raise WrongError("out_of_turn", "no such session")
        session.attach(stream, message)
        with contextlib.suppress(ClosedError, RefusedError):
            stream.receive()
        session.service.lose_stream(number)


def hear(stream: Stream, deadline: float | None = None) -> tuple[bytes, Message]:
    """Take a message of the reader, by its body as well."""
    try:
        frame = stream.receive(deadline)
    except RefusedError as error:
        raise WrongError("bad_frame", str(error)) from error
    if frame.kind != MESSAGE:
        return frame.body, {"type": "descriptor"}
    try:
        return frame.body, decode_message(frame.body, "reader")
    except RefusedError as error:
        raise WrongError("bad_message", str(error)) from error


class _Session:
    def __init__(self, holder: Holder, control: Stream, body: bytes, hello: Message) -> None:
        settings = holder.settings
        self.holder = holder
        self.control = control
        self.name = settings.session or secrets.token_hex(16)
        self.max_data_bytes = min(hello["max_data_bytes"], settings.max_data_bytes)
        self.service = Service(holder.store, control, self.max_data_bytes, settings.cut)
        self._features = [each for each in hello["features"] if each in settings.features]
        self.service.has_shm = "shm" in self._features
        self._hello = body
        self._versions = hello["versions"]
        self._key = b""
        self._is_open = False
        self._used: set[int] = set()
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            if self._open(time.monotonic() + OPENING_S):
                self.service.add_stream(0, self.control)
                while self.service.turn(hear(self.control)[1]):
                    pass
            self.control.close_after()
        finally:
            with self._lock:
                self._is_open = False
            self.holder.sessions.pop(self.name, None)
            self.service.end()

    # --- 3, 4: the opening ---

    def _open(self, deadline: float) -> bool:
        """From `welcome` to OPEN; whether the session got there."""
        if 1 not in self._versions:
            raise WrongError("bad_version", "this side speaks kvwire/1 alone")
        digest = self._welcome()
        _, message = hear(self.control, deadline)
        if message["type"] == "bye":
            return False
        if message["type"] != "prove":
            raise WrongError("out_of_turn", f"{message['type']} may not be said now")
        right = prove(self.holder.token, "reader", digest)
        if not is_proof(self.holder.token, message["proof"], right):
            raise WrongError("bad_proof", "the reader has another token")
        self.control.frames.max_message_bytes = MAX_MESSAGE_BYTES
        self.control.frames.max_descriptor_bytes = MAX_DESCRIPTOR_BYTES
        body, message = hear(self.control, deadline)
        self.control.frames.max_descriptor_bytes = 0
        while message["type"] == "forgo":
            self.service.forgo(message)
            _, message = hear(self.control)
        if message["type"] not in ("bye", "descriptor"):
            raise WrongError("out_of_turn", f"{message['type']} may not be said now")
        return message["type"] == "descriptor" and self._compare(body)

    def _welcome(self) -> bytes:
        settings, token = self.holder.settings, self.holder.token
        fields = {
            "version": 1,
            "engine": settings.engine,
            "generation": settings.generation,
            "session": self.name,
            "nonce": settings.nonce or secrets.token_hex(32),
            "max_data_bytes": self.max_data_bytes,
            "max_streams": settings.max_streams,
            "features": self._features,
        }
        blank = {"type": "welcome", **fields, "proof": "0" * 64}
        digest = transcript(self._hello, encode_message(blank, "holder"))
        self._key = prove(token, "session", digest)
        proof = prove(token, "holder", digest).hex()
        self.control.say("holder", "welcome", **fields, proof=proof)
        return digest

    def _compare(self, twin: bytes) -> bool:
        try:
            theirs = read_descriptor(twin)
        except RefusedError as error:
            raise WrongError("bad_descriptor", str(error)) from error
        verdict, path = self.holder.settings.judge(self.holder.store.descriptor, theirs)
        if verdict == "refused":
            self.control.say("holder", "refuse", path=path, reason="differs from the holder's")
            return False
        self._is_open = True
        self.holder.sessions[self.name] = self
        self.control.say("holder", "accept", verdict=verdict)
        self.control.send(write_frame(DESCRIPTOR, self.holder.twin))
        return True

    def attach(self, stream: Stream, message: Message) -> None:
        number = message["stream"]
        right = prove_stream(self._key, self.name, number)
        if not is_proof(self.holder.token, message["proof"], right):
            raise WrongError("bad_proof", "the proof is not of this session and stream")
        with self._lock:
            if not self._is_open or number in self._used:
                raise WrongError("out_of_turn", f"stream {number} may not be attached now")
            if number > self.holder.settings.max_streams:
                raise WrongError("out_of_turn", f"there is no stream {number}")
            self._used.add(number)
        first = message_frame("holder", "attached", stream=number)
        self.service.add_stream(number, stream, first)
