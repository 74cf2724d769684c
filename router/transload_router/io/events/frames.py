"""The frames of live and replayed messages, of every layout that vLLM has used.

Live: `[topic, seq, payload]`. Replayed, behind a DEALER's delimiter: `[b"", topic, seq, payload]`
from vLLM 0.28, `[b"", seq, payload]` from 0.16. The end of an answer is a message of sequence -1
and no payload. The sequence is 8 bytes, big-endian, and always stands right before the payload.
"""

# The sequence that ends a replay: -1 in 64 bits.
END = 0xFFFF_FFFF_FFFF_FFFF
# A step a microsecond reaches this in nine years; a topic of 8 letters reads as more than 2**60.
MAX_SEQ = 1 << 48
_SEQ_BYTES = 8


def read_frames(frames: list[bytes]) -> tuple[int | None, bytes]:
    """Sequence and payload of a message of at least one frame.

    Returns:
        The sequence: `END`, a number below `MAX_SEQ`, or None where the message has none.
    """
    if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
        return None, frames[-1]
    seq = int.from_bytes(frames[-2], "big")
    return (seq if seq < MAX_SEQ or seq == END else None), frames[-1]


def replay_request(first_seq: int) -> list[bytes]:
    """The message that asks for all batches from `first_seq` on, for a DEALER."""
    return [b"", first_seq.to_bytes(_SEQ_BYTES, "big")]
