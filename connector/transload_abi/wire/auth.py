"""Who knows the shared token: proofs over what both sides have said, so none serves twice.

The token itself is never sent. Knows no randomness: nonces and the session's name are the caller's.
"""

import hashlib
import hmac
from typing import Final

from transload_abi.packed import pack
from transload_abi.wire.codec import read_tree
from transload_abi.wire.errors import BadMessage, BadProof
from transload_abi.wire.frames import message_frame
from transload_abi.wire.limits import NONCE_DIGITS

NO_PROOF: Final = "0" * NONCE_DIGITS
"""Stands in a `Welcome` for the proof that is made over it."""

NO_TOKEN: Final = b""
"""Of a side without a token: its proofs prove nothing, and it asks for none."""

_HOLDER: Final = b"kvwire/1 holder"
_READER: Final = b"kvwire/1 reader"
_SESSION: Final = b"kvwire/1 session"
_STREAM: Final = b"kvwire/1 stream"


def transcript(hello: bytes, welcome: bytes) -> bytes:
    """The digest of what both sides have said: both nonces, the session, versions, features.

    Args:
        hello: The body of the message as it was sent.
        welcome: Likewise, with any proof.

    Raises:
        BadMessage: The welcome is not in the strict form, or has no proof.
    """
    tree = read_tree(welcome)
    if not isinstance(tree.get("proof"), str):
        raise BadMessage("expected a text", "welcome.proof")
    bare = pack({**tree, "proof": NO_PROOF})
    return hashlib.sha256(message_frame(hello) + message_frame(bare)).digest()


def holder_proof(token: bytes, digest: bytes) -> str:
    """What `Welcome.proof` holds.

    Args:
        token: Shared by both sides; `NO_TOKEN` where there is none.
        digest: The transcript's.
    """
    return _proof(token, _HOLDER + digest)


def reader_proof(token: bytes, digest: bytes) -> str:
    """What `Prove.proof` holds; arguments as of `holder_proof`."""
    return _proof(token, _READER + digest)


def session_key(token: bytes, digest: bytes) -> bytes:
    """The key of a session's data streams; arguments as of `holder_proof`."""
    return hmac.digest(token, _SESSION + digest, "sha256")


def stream_proof(key: bytes, session: str, stream: int) -> str:
    """What `Attach.proof` holds.

    Args:
        key: As `session_key` says.
        session: Of the session, 32 hex digits.
        stream: Number of the data stream.
    """
    return _proof(key, _STREAM + bytes.fromhex(session) + stream.to_bytes(4, "little"))


def check_proof(expected: str, given: str, token: bytes, path: str) -> None:
    """Refuse a proof that is wrong; in a time that does not depend on how wrong.

    Args:
        expected: As made by this side.
        given: By the peer.
        token: This side's; without one nothing is refused.
        path: Message and field.

    Raises:
        BadProof: It is wrong.
    """
    if token and not hmac.compare_digest(expected.encode(), given.encode()):
        raise BadProof("the peer does not know this side's token", path)


def _proof(key: bytes, text: bytes) -> str:
    return hmac.digest(key, text, "sha256").hex()
