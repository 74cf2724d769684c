"""How large the parts of a conversation may be, and how long a side waits for the other.

A side refuses what is beyond the sizes before it spends memory on it. Sizes that descriptors have
as well are those of `transload_abi.limits`.
"""

from typing import Final

MAX_MESSAGE_BYTES: Final = 1 << 16
"""Of a message's body."""

MAX_UNPROVEN_BYTES: Final = 1 << 12
"""Of a message that comes before its sender's proof was taken, or on a data stream. One with names
of usual length has 300 bytes; one of 64 KiB takes tens of milliseconds to decode, which strangers
shall not ask for."""

MAX_DATA_BYTES: Final = 1 << 23
"""Of the bytes in one data frame; a side may announce less."""

MIN_DATA_BYTES: Final = 1 << 12
"""The least that a side may announce."""

MAX_STREAMS: Final = 16
"""Data streams of a session, besides its control stream."""

MAX_READS: Final = 64
"""Reads of a session that have not ended."""

MAX_OPEN: Final = 1024
"""Handoffs that a session has open, and answers that a reader waits for."""

MAX_RANGES: Final = 4096
"""Ranges of blocks in one message: of a read, or of all tables of a lease. 45 kB at most."""

MAX_READERS: Final = 1 << 16
"""Of one handoff."""

MAX_NAME_CHARS: Final = 256
"""Of an engine, a generation, a handoff, a lease, a reader."""

MAX_REASON_CHARS: Final = 500
"""Of a sentence for an operator."""

FILE_PREFIX: Final = "transload-"
MAX_FILE_CHARS: Final = 255
"""Of the name of a pool's file: what Linux allows (`NAME_MAX`)."""

MAX_FEATURES: Final = 64
MAX_FEATURE_CHARS: Final = 64
MAX_VERSIONS: Final = 16
MAX_VERSION: Final = (1 << 16) - 1

NONCE_DIGITS: Final = 64
"""Hex digits of a nonce, and of a proof: 32 bytes."""

SESSION_DIGITS: Final = 32
"""Hex digits of a session's name."""

MAX_ID: Final = (1 << 32) - 1
"""Of a request or read; ids of a session ascend, and a session ends before they do not fit."""

MAX_TERM_MS: Final = (1 << 32) - 1
"""Of a lease: 49 days."""

OPENING_S: Final = 30.0
"""From a connection to `accept`, and to `attach` on a data stream: a side may close thereafter. It
leaves room to compare descriptors of some thousand pools on a busy machine."""

SILENCE_S: Final = 30.0
"""Without a byte where one is owed: a side may take the other for dead."""
