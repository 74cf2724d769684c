"""Frames and proofs of `kvwire/1`, spelled out from `WIRE.md` with the standard library."""

import hashlib
import hmac
import zlib
from typing import Any

from abi_vectors.packed import pack

Document = dict[str, Any]

NO_PROOF = "0" * 64


def frame(kind: int, body: bytes) -> bytes:
    """Header and body."""
    return len(body).to_bytes(4, "little") + bytes([kind, 0, 0, 0]) + body


def message(document: Document) -> bytes:
    """The frame of a message."""
    return frame(1, pack(document))


def descriptor(document: Document) -> bytes:
    """The frame of a descriptor."""
    return frame(3, pack(document))


def data(read: int, offset: int, content: bytes, *, has_checksum: bool) -> bytes:
    """The frame of some bytes of a read."""
    checksum = zlib.crc32(content) if has_checksum else 0
    head = (
        read.to_bytes(4, "little")
        + int(has_checksum).to_bytes(4, "little")
        + offset.to_bytes(8, "little")
        + checksum.to_bytes(4, "little")
        + bytes(4)
    )
    return frame(2, head + content)


def transcript(hello: Document, welcome: Document) -> bytes:
    """The digest over both frames, the proof being zeros."""
    return hashlib.sha256(message(hello) + message({**welcome, "proof": NO_PROOF})).digest()


def proof(token: bytes, label: str, digest: bytes) -> bytes:
    """What one side proves by."""
    return hmac.new(token, f"kvwire/1 {label}".encode() + digest, hashlib.sha256).digest()


def stream_proof(key: bytes, session: str, stream: int) -> bytes:
    """What a data stream is attached with."""
    text = b"kvwire/1 stream" + bytes.fromhex(session) + stream.to_bytes(4, "little")
    return hmac.new(key, text, hashlib.sha256).digest()
