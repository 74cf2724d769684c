"""What messages are made of besides numbers and texts: ranges, tables, files, and words.

Code takes them from `messages`, as part of what is said.
"""

from typing import Literal

import msgspec

Range = tuple[int, int]
"""First and count."""

Form = Literal["block", "page", "elements"]
"""What is sent of each block asked for: all its bytes (`Pool.block_bytes`), its pages with their
pads (`Place.page_bytes`), or the bytes that hold elements."""

Gone = Literal["expired", "ended", "unknown", "other_lease"]
"""Why a lease is not held: its time is over; all its readers have ended it, or this one has; the
handoff was never here; it is held under another lease."""

Code = Literal[
    "bad_frame",
    "bad_message",
    "bad_descriptor",
    "bad_version",
    "bad_proof",
    "bad_read",
    "out_of_turn",
    "too_many",
    "busy",
    "internal",
]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One block table of a handoff.

    Attributes:
        table: Its number in the holder's descriptor.
        num_blocks: Length of its list, aligned at its tail as `connector/ABI.md` section 9 says.
        null: Ranges of the list that hold nothing.
    """

    table: int
    num_blocks: int
    null: tuple[Range, ...] = ()


class PoolFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pool that others on the holder's host can map.

    Attributes:
        pool: Its id in the holder's descriptor.
        name: Of its file.
        num_bytes: Of the file, and of the pool.
    """

    pool: str
    name: str
    num_bytes: int
