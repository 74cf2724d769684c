"""What was written from the wire's document, offered as a harness: `python -m` runs it.

`play` is left out: these sides wait for sockets, and whoever has sockets alone cannot tell when a
side has said all. Their sessions are played by `wire_from_the_document_play`.
"""

import json
import sys
from typing import Any

from conformance.wire_from_the_document_descriptor import read_descriptor
from conformance.wire_from_the_document_frames import (
    DATA,
    MESSAGE,
    Frame,
    FrameReader,
    prove,
    prove_stream,
    transcript,
)
from conformance.wire_from_the_document_messages import (
    Message,
    decode_message,
    encode_message,
    without_defaults,
)
from conformance.wire_from_the_document_packing import RefusedError, pack
from conformance.wire_from_the_document_payload import check_read, num_payload_bytes, runs_of

Answer = dict[str, Any]


def _decode_message(sender: str, body: str) -> Answer:
    message = decode_message(bytes.fromhex(body), sender)
    return {"message": without_defaults(message, sender)}


def _encode_message(sender: str, message: Message) -> Answer:
    return {"body": encode_message(message, sender).hex()}


def _decode_frames(chunks: list[str], max_data_bytes: int, max_descriptor_bytes: int) -> Answer:
    reader = FrameReader(max_data_bytes, max_descriptor_bytes)
    found: list[Answer] = []
    try:
        for chunk in chunks:
            reader.feed(bytes.fromhex(chunk))
            while (frame := reader.next()) is not None:
                found.append(_as_json(frame))
    except RefusedError:
        return {"frames": found, "is_refused": True}
    return {"frames": found, "is_refused": False}


def _as_json(frame: Frame) -> Answer:
    if frame.kind != DATA:
        return {"message" if frame.kind == MESSAGE else "descriptor": frame.body.hex()}
    found = {"read": frame.read, "offset": frame.offset, "data": frame.body.hex()}
    return found if frame.checksum is None else {**found, "checksum": frame.checksum}


def _prove(token: str, hello: str, welcome: str, session: str, streams: list[int]) -> Answer:
    key = bytes.fromhex(token)
    digest = transcript(bytes.fromhex(hello), bytes.fromhex(welcome))
    session_key = prove(key, "session", digest)
    return {
        "transcript": digest.hex(),
        "holder_proof": prove(key, "holder", digest).hex(),
        "reader_proof": prove(key, "reader", digest).hex(),
        "session_key": session_key.hex(),
        "stream_proofs": {str(n): prove_stream(session_key, session, n).hex() for n in streams},
    }


def _payload(descriptor: Answer, read: Message, block_ids: list[int]) -> Answer:
    holder = read_descriptor(pack(descriptor))
    message = decode_message(pack({"type": "read", "id": 1, "handoff": "h", **read}), "reader")
    check_read(holder, message)
    num_bytes = num_payload_bytes(holder, message)
    return {"num_bytes": num_bytes, "runs": runs_of(holder, message, block_ids)}


OPERATIONS = {
    "decode_message": _decode_message,
    "encode_message": _encode_message,
    "decode_frames": _decode_frames,
    "prove": _prove,
    "payload": _payload,
}


def answer(request: Answer) -> Answer:
    """What is said to a request."""
    operation: Any = OPERATIONS.get(request["op"])
    if operation is None:
        return {"unsupported": "not written"}
    try:
        return {"ok": operation(**request["args"])}
    except RefusedError as error:
        return {"refused": {"path": error.path, "says": str(error)}}


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps({"id": asked["id"], **answer(asked)}) + "\n")
        sys.stdout.flush()
