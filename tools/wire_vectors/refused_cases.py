"""Bodies that no side may take for a message: one for each rule."""

from typing import NamedTuple

from abi_vectors.packed import pack
from wire_vectors.message_cases import (
    MAX,
    MAX_UNPROVEN,
    NONCE,
    PROOF,
    SESSION,
    accepted,
    padded,
)
from wire_vectors.spelling import Document


class RefusedCase(NamedTuple):
    """A body to be refused.

    Attributes:
        name: Of the case.
        sender: Who seems to say it.
        path: Message and field; empty where no field is wrong but the bytes.
        body: The bytes.
    """

    name: str
    sender: str
    path: str
    body: bytes


def refused() -> list[RefusedCase]:
    """All of them."""
    return [*_bytes(), *_unproven(), *_types(), *_fields()]


def _unproven() -> list[RefusedCase]:
    """Longer than a message may be that comes before a proof, or on a data stream."""
    good = {case.name: case for case in accepted()}
    return [
        RefusedCase(
            f"{name}-too-long",
            good[name].sender,
            name,
            pack(padded(good[name].meaning, MAX_UNPROVEN + 1)),
        )
        for name in ("hello", "prove", "attach", "welcome", "attached")
    ]


def _bytes() -> list[RefusedCase]:
    """Not the strict form."""
    bye = pack({"type": "bye"})
    found = {
        "empty": b"",
        "not-a-map": pack(["bye"]),
        "a-text": pack("bye"),
        "bytes-after-the-end": bye + b"\xc0",
        "cut": bye[:-1],
        "map-in-a-long-form": b"\xde\x00\x01" + bye[1:],
        "text-in-a-long-form": bye[:6] + b"\xd9\x03bye",
        "integer-in-a-long-form": b"\x82\xa2id\xcc\x07" + pack("type") + pack("cancel"),
        "signed-form-of-a-positive": b"\x82\xa2id\xd0\x07" + pack("type") + pack("cancel"),
        "names-out-of-order": b"\x82" + pack("type") + pack("cancel") + b"\xa2id\x07",
        "a-name-twice": b"\x83\xa2id\x07\xa2id\x07" + pack("type") + pack("cancel"),
        "a-name-that-is-a-number": b"\x82\x01\x07" + pack("type") + pack("cancel"),
        "a-float": b"\x82\xa2id\xcb" + bytes(8) + pack("type") + pack("cancel"),
        "binary": b"\x82\xa2id\xc4\x01\x07" + pack("type") + pack("cancel"),
        "messagepack-extension": b"\x82\xa2id\xd4\x01\x07" + pack("type") + pack("cancel"),
        "not-utf-8": b"\x82" + pack("reason") + b"\xa1\xff" + bye[1:],
        "too-deep": pack({"type": "bye", "x_deep": _deep(12)}),
        "too-long": pack({"type": "bye", "x_long": ["x" * 500] * 131}),
        "a-name-beyond-ascii": pack({"type": "bye", "x_\u00e9": 1}),
    }
    cases = [RefusedCase(name, "reader", "", body) for name, body in found.items()]
    told = {
        "control-character": ("bye.reason", {"type": "bye", "reason": "a\nb"}),
        "long-text-in-an-extension": ("bye.x_long", {"type": "bye", "x_long": "x" * 513}),
        "large-number-in-an-extension": ("bye.x_large", {"type": "bye", "x_large": MAX + 1}),
    }
    return cases + [
        RefusedCase(name, "reader", path, pack(body)) for name, (path, body) in told.items()
    ]


def _deep(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth - 1):
        found = [found]
    return found


def _types() -> list[RefusedCase]:
    found: list[tuple[str, str, Document]] = [
        ("no-type", "reader", {"reason": ""}),
        ("type-that-is-no-text", "reader", {"type": 1}),
        ("unknown-type", "reader", {"type": "ping"}),
        ("unknown-type-with-the-prefix", "reader", {"type": "x_ping"}),
        ("type-in-capitals", "reader", {"type": "Bye"}),
        ("message-of-the-other-side", "holder", {"type": "cancel", "id": 1}),
        ("message-of-the-holder", "reader", {"type": "cancelled", "id": 1}),
    ]
    return [RefusedCase(name, sender, "type", pack(body)) for name, sender, body in found]


def _fields() -> list[RefusedCase]:
    """A good message with one field that is not."""
    good = {(case.sender, case.name): case.meaning for case in accepted() if case.is_canonical}
    cases: list[RefusedCase] = []
    for sender, base, path, value in (*_READER, *_HOLDER):
        document = dict(good[sender, base])
        field = path.partition(".")[2].partition("[")[0]
        if value is LACKING:
            del document[field]
        else:
            document[field] = value
        number = sum(case.path == path for case in cases)
        cases.append(RefusedCase(f"{path}-{number + 1}", sender, path, pack(document)))
    return cases


LACKING = object()
_NAME = "n" * 257
_TABLE = {"table": 0, "num_blocks": 3}
_FILE = {"pool": "kv", "name": "transload-kv", "num_bytes": 256}

_Row = tuple[str, str, str, object]
"""Sender, the message to spoil, path of what is refused, value of the field."""

_READER: list[_Row] = [
    ("reader", "bye", "bye.why", ""),
    ("reader", "hello", "hello.generation", LACKING),
    ("reader", "hello", "hello.versions", []),
    ("reader", "hello", "hello.versions", list(range(1, 18))),
    ("reader", "hello", "hello.versions", 1),
    ("reader", "hello", "hello.versions[0]", [0]),
    ("reader", "hello", "hello.versions[0]", [1 << 16]),
    ("reader", "hello", "hello.versions[0]", ["1"]),
    ("reader", "hello", "hello.versions[1]", [2, 1]),
    ("reader", "hello", "hello.versions[1]", [1, 1]),
    ("reader", "hello", "hello.engine", _NAME),
    ("reader", "hello", "hello.engine", None),
    ("reader", "hello", "hello.generation", ""),
    ("reader", "hello", "hello.generation", _NAME),
    ("reader", "hello", "hello.nonce", NONCE[:-1]),
    ("reader", "hello", "hello.nonce", NONCE.upper()),
    ("reader", "hello", "hello.max_data_bytes", 4095),
    ("reader", "hello", "hello.max_data_bytes", (1 << 23) + 1),
    ("reader", "hello", "hello.features", [f"{number:03}" for number in range(65)]),
    ("reader", "hello", "hello.features[0]", [""]),
    ("reader", "hello", "hello.features[0]", ["f" * 65]),
    ("reader", "hello", "hello.features[1]", ["b", "a"]),
    ("reader", "prove", "prove.proof", PROOF + "00"),
    ("reader", "prove", "prove.proof", "g" * 64),
    ("reader", "attach", "attach.session", SESSION * 2),
    ("reader", "attach", "attach.stream", 0),
    ("reader", "attach", "attach.stream", 17),
    ("reader", "attach", "attach.proof", ""),
    ("reader", "open", "open.id", 0),
    ("reader", "open", "open.id", 1 << 32),
    ("reader", "open", "open.id", -1),
    ("reader", "open", "open.id", True),
    ("reader", "open", "open.handoff", ""),
    ("reader", "open", "open.handoff", _NAME),
    ("reader", "open", "open.lease", ""),
    ("reader", "open", "open.reader", ""),
    ("reader", "read", "read.group", ""),
    ("reader", "read", "read.blocks", []),
    ("reader", "read", "read.blocks", [[2 * number, 1] for number in range(4097)]),
    ("reader", "read", "read.blocks[0]", [[0]]),
    ("reader", "read", "read.blocks[0]", [[0, 1, 1]]),
    ("reader", "read", "read.blocks[0]", [[0, 0]]),
    ("reader", "read", "read.blocks[0]", [[1, 1 << 32]]),
    ("reader", "read", "read.blocks[1]", [[0, 2], [1, 1]]),
    ("reader", "read", "read.blocks[1]", [[4, 1], [0, 1]]),
    ("reader", "read", "read.layers", [0, 0]),
    ("reader", "read", "read.layers", [1, 4096]),
    ("reader", "read", "read.layers", [[0, 1]]),
    ("reader", "read", "read.heads", [1 << 16, 1]),
    ("reader", "read", "read.form", "cells"),
    ("reader", "read", "read.form", None),
    ("reader", "read", "read.stream", 17),
    ("reader", "read", "read.checksums", 1),
    ("reader", "cancel", "cancel.id", 0),
    ("reader", "cancel", "cancel.handoff", "h"),
    ("reader", "map", "map.table", LACKING),
    ("reader", "map", "map.table", -1),
    ("reader", "map", "map.blocks", []),
    ("reader", "map", "map.blocks", [[2 * number, 1] for number in range(4097)]),
    ("reader", "map", "map.blocks[0]", [[1, 1 << 32]]),
    ("reader", "map", "map.blocks[1]", [[1, 1], [0, 1]]),
    ("reader", "confirm", "confirm.handoff", ""),
    ("reader", "renew", "renew.id", 0),
    ("reader", "done", "done.handoff", _NAME),
    ("reader", "release", "release.handoff", 1),
    ("reader", "forgo", "forgo.lease", ""),
    ("reader", "bye", "bye.reason", "r" * 501),
]
_HOLDER: list[_Row] = [
    ("holder", "welcome", "welcome.version", 0),
    ("holder", "welcome", "welcome.engine", _NAME),
    ("holder", "welcome", "welcome.generation", ""),
    ("holder", "welcome", "welcome.session", SESSION.upper()),
    ("holder", "welcome", "welcome.nonce", ""),
    ("holder", "welcome", "welcome.proof", PROOF[1:]),
    ("holder", "welcome", "welcome.max_data_bytes", 0),
    ("holder", "welcome", "welcome.max_streams", 17),
    ("holder", "welcome", "welcome.features", "a"),
    ("holder", "accept", "accept.verdict", "refused"),
    ("holder", "refuse", "refuse.path", "p" * 513),
    ("holder", "refuse", "refuse.reason", "r" * 501),
    ("holder", "attached", "attached.stream", 0),
    ("holder", "lease", "lease.num_tokens", 0),
    ("holder", "lease", "lease.num_encoder_tokens", MAX + 1),
    ("holder", "lease", "lease.tables", []),
    ("holder", "lease", "lease.tables", [{**_TABLE, "table": n} for n in range(257)]),
    (
        "holder",
        "lease",
        "lease.tables",
        [
            {"table": n, "num_blocks": 1 << 32, "null": [[2 * i, 1] for i in range(2049)]}
            for n in range(2)
        ],
    ),
    ("holder", "lease", "lease.tables[0].size", [{**_TABLE, "size": 1}]),
    ("holder", "lease", "lease.tables[1].table", [_TABLE, _TABLE]),
    ("holder", "lease", "lease.tables[0].num_blocks", [{"table": 0, "num_blocks": (1 << 32) + 1}]),
    ("holder", "lease", "lease.tables[0].num_blocks", [{"table": 0}]),
    ("holder", "lease", "lease.tables[0].null[0]", [{**_TABLE, "null": [[0, 4]]}]),
    ("holder", "lease", "lease.tables[0].null[1]", [{**_TABLE, "null": [[1, 1], [0, 1]]}]),
    ("holder", "lease", "lease.readers", 0),
    ("holder", "lease", "lease.readers", (1 << 16) + 1),
    ("holder", "lease", "lease.left", 0),
    ("holder", "lease", "lease.left", 2),
    ("holder", "lease", "lease.expires_ms", 1 << 32),
    ("holder", "read_end", "read_end.num_bytes", MAX + 1),
    ("holder", "read_end", "read_end.id", 0),
    ("holder", "cancelled", "cancelled.id", 0),
    ("holder", "mapped", "mapped.pools", []),
    ("holder", "mapped", "mapped.pools[0].name", [{**_FILE, "name": "transload-"}]),
    ("holder", "mapped", "mapped.pools[0].name", [{**_FILE, "name": "kv"}]),
    ("holder", "mapped", "mapped.pools[0].name", [{**_FILE, "name": "transload-a/b"}]),
    ("holder", "mapped", "mapped.pools[0].name", [{**_FILE, "name": "transload-.."}]),
    ("holder", "mapped", "mapped.pools[0].name", [{**_FILE, "name": "transload-A"}]),
    ("holder", "mapped", "mapped.pools[0].name", [{**_FILE, "name": f"transload-{'a' * 246}"}]),
    ("holder", "mapped", "mapped.pools[0].pool", [{**_FILE, "pool": ""}]),
    ("holder", "mapped", "mapped.pools[0].num_bytes", [{**_FILE, "num_bytes": 0}]),
    ("holder", "mapped", "mapped.pools[0].num_bytes", [{"pool": "kv", "name": "transload-kv"}]),
    ("holder", "mapped", "mapped.pools[0].size", [{**_FILE, "size": 1}]),
    ("holder", "mapped", "mapped.pools[1].pool", [_FILE, _FILE]),
    ("holder", "mapped", "mapped.blocks", []),
    ("holder", "mapped", "mapped.blocks", [[0, 1]] * 4097),
    ("holder", "mapped", "mapped.blocks[0]", [[0, 0]]),
    ("holder", "mapped", "mapped.blocks[1]", [[0, 1], [1, 1 << 32]]),
    ("holder", "confirmed", "confirmed.expires_ms", -1),
    ("holder", "ended", "ended.left", (1 << 16) + 1),
    ("holder", "expired-ended", "expired.why", "late"),
    ("holder", "error-request", "error.code", "bad_luck"),
    ("holder", "error-request", "error.id", 1 << 32),
    ("holder", "error-request", "error.reason", "r" * 501),
    ("holder", "bye-holder", "bye.reason", "r" * 501),
]
