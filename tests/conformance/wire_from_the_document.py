"""The wire protocol once more, written from `connector/WIRE.md` and its vectors alone.

Nothing here is fast or shared with the implementation: somebody who had only the documents would
write this. Here are the two sides in one call each; the siblings have messages, frames, payloads,
reader and holder. Descriptors go in as JSON trees, canonical or not.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.wire_from_the_document_holder import Holder
from conformance.wire_from_the_document_holder import Settings as HolderSettings
from conformance.wire_from_the_document_leases import Leases
from conformance.wire_from_the_document_packing import pack
from conformance.wire_from_the_document_reader import Reader
from conformance.wire_from_the_document_reader import Settings as ReaderSettings


def connect_reader(
    host: str,
    port: int,
    token: bytes,
    descriptor: Mapping[str, Any] | None,
    settings: ReaderSettings | None = None,
) -> Reader:
    """Open a session; raises `EndedError` where either side will not."""
    twin = None if descriptor is None else pack(descriptor)
    reader = Reader(
        lambda: socket.create_connection((host, port), timeout=None), token, twin, settings
    )
    reader.start()
    return reader


def read_handoff(
    host: str,
    port: int,
    token: bytes,
    descriptor: Mapping[str, Any],
    handoff: str,
    lease: str,
    reads: Sequence[Mapping[str, Any]],
    reader: str = "reader",
    settings: ReaderSettings | None = None,
) -> dict[str, Any]:
    """Read a handoff and end its share.

    Each of `reads` has a read's fields but `id` and `handoff`; data streams are attached as they
    name them. Gives `verdict`, the holder's `descriptor` with all its defaults, `lease` (or what
    was answered in its place), `payloads` (`None` for a read that failed), the `answers` to the
    reads, and `ended`.
    """
    session = connect_reader(host, port, token, descriptor, settings)
    for number in sorted({read.get("stream", 0) for read in reads} - {0}):
        session.attach(number)
    opened = session.open(handoff, lease, reader)
    found: dict[str, Any] = {
        "verdict": session.verdict,
        "descriptor": session.holder,
        "lease": opened,
        "payloads": [],
        "answers": [],
        "ended": None,
    }
    if opened["type"] == "lease":
        ids = [session.read(handoff, **read) for read in reads]
        found["payloads"] = [session.finish(number) for number in ids]
        found["answers"] = [session.reads[number].answer for number in ids]
        kind = "done" if None not in found["payloads"] else "release"
        found["ended"] = session.about(kind, handoff)
    session.bye()
    return found


def serve_handoff(
    token: bytes,
    descriptor: Mapping[str, Any],
    memory: Mapping[str, bytes],
    handoff: str,
    lease: str,
    tables: Mapping[int, Sequence[int]],
    num_tokens: int,
    num_readers: int = 1,
    settings: HolderSettings | None = None,
) -> tuple[Holder, int]:
    """Hold one handoff for readers on a port of the loopback; `close` the holder afterwards."""
    leases = Leases(time.monotonic)
    leases.grant(handoff, lease, tables, num_tokens, num_readers)
    holder = Holder(token, pack(descriptor), memory, leases, settings)
    return holder, holder.listen()
