"""This implementation's answers to what vectors of the wire ask, as `HARNESS.md` says.

Whether two descriptors go together is the caller's to say: the wire does not judge.
"""

import json
from typing import Final

import msgspec

from transload_abi.errors import AbiError
from transload_abi.harness.protocol import Fields, InProcess
from transload_abi.text import read as read_descriptor
from transload_abi.tree import tree_of
from transload_abi.types import Descriptor
from transload_abi.wire import auth, codec, frames
from transload_abi.wire.conformance.ours_holder import Compare, play_holder
from transload_abi.wire.conformance.ours_reader import play_reader
from transload_abi.wire.errors import BadFrame, BadMessage, BadRead, WireError
from transload_abi.wire.messages import HolderMessage, Read, ReaderMessage
from transload_abi.wire.payload import payload_of

_REFUSALS: Final[dict[type[Exception], str]] = {
    BadFrame: "bad_frame",
    BadMessage: "bad_message",
    BadRead: "bad_read",
    WireError: "internal",
    AbiError: "bad_descriptor",
}


def ours(compare: Compare) -> InProcess:
    """This implementation.

    Args:
        compare: From the holder's descriptor to the reader's.
    """

    def play(fields: Fields) -> Fields:
        if fields["side"] == "reader":
            return play_reader(fields, descriptor_of(fields["descriptor"]))
        holder = descriptor_of(fields["descriptor"])
        assert holder is not None
        return play_holder(fields, holder, compare)

    operations = {
        "decode_message": _decode_message,
        "encode_message": _encode_message,
        "decode_frames": _decode_frames,
        "prove": _prove,
        "payload": _payload,
        "play": play,
    }
    return InProcess(operations, _REFUSALS)


def descriptor_of(tree: Fields | None) -> Descriptor | None:
    """A descriptor from its JSON; None where there is none."""
    return None if tree is None else read_descriptor(json.dumps(tree).encode())


def _decode_message(fields: Fields) -> Fields:
    message = codec.decode(bytes.fromhex(fields["body"]), fields["sender"])
    return {"message": {codec.TYPE: codec.type_of(message), **tree_of(message)}}


def _encode_message(fields: Fields) -> Fields:
    union = ReaderMessage if fields["sender"] == "reader" else HolderMessage
    message = msgspec.convert(fields["message"], union)
    return {"body": codec.encode_body(message).hex()}


def _decode_frames(fields: Fields) -> Fields:
    decoder = frames.FrameDecoder(fields["max_data_bytes"], fields["max_descriptor_bytes"])
    told: list[Fields] = []
    try:
        for chunk in fields["chunks"]:
            for frame in decoder.feed(bytes.fromhex(chunk)):
                _tell(frame, told)
    except BadFrame:
        return {"frames": told, "is_refused": True}
    return {"frames": told, "is_refused": False}


def _tell(frame: frames.Frame, told: list[Fields]) -> None:
    match frame:
        case frames.MessageFrame(body):
            told.append({"message": body.hex()})
        case frames.DescriptorFrame(body):
            told.append({"descriptor": body.hex()})
        case frames.DataBegin(read, offset, _, checksum):
            has_checksum = {} if checksum is None else {"checksum": checksum}
            told.append({"read": read, "offset": offset, "data": "", **has_checksum})
        case frames.DataBytes(data, _):
            told[-1]["data"] += data.hex()


def _prove(fields: Fields) -> Fields:
    token = bytes.fromhex(fields["token"])
    digest = auth.transcript(bytes.fromhex(fields["hello"]), bytes.fromhex(fields["welcome"]))
    key = auth.session_key(token, digest)
    return {
        "transcript": digest.hex(),
        "holder_proof": auth.holder_proof(token, digest),
        "reader_proof": auth.reader_proof(token, digest),
        "session_key": key.hex(),
        "stream_proofs": {
            str(stream): auth.stream_proof(key, fields["session"], stream)
            for stream in fields["streams"]
        },
    }


def _payload(fields: Fields) -> Fields:
    holder = descriptor_of(fields["descriptor"])
    assert holder is not None
    # Which handoff it is of makes no difference to its bytes.
    read = msgspec.convert({codec.TYPE: "read", "id": 1, "handoff": "h", **fields["read"]}, Read)
    payload = payload_of(holder, read)
    return {
        "num_bytes": payload.num_bytes(read.blocks),
        "runs": [list(run) for run in payload.runs_of(fields["block_ids"])],
    }
