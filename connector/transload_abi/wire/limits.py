"""How large the parts of a conversation may be, and how long a side waits for the other.

A side refuses what is beyond the sizes before it spends memory on it.
"""

from typing import Final

MAX_MESSAGE_BYTES: Final = 1 << 16
"""Of a message's body."""

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
"""Ranges of blocks in one read: what fits into a message."""

MAX_READERS: Final = 1 << 16
"""Of one handoff."""

MAX_NAME_CHARS: Final = 256
"""Of an engine, a handoff, a lease, a reader, a group."""

MAX_REASON_CHARS: Final = 500
"""Of a sentence for an operator."""

MAX_FEATURES: Final = 64
MAX_VERSIONS: Final = 16

MAX_ID: Final = (1 << 32) - 1
"""Of a request or read; ids of a session ascend, and a session ends before they do not fit."""
