"""Messages of `connector/WIRE.md`, 2.1 and 5, as a table, with their one way of being written.

Numbers in comments are the document's sections. Knows nothing of frames and of turns.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from conformance.wire_from_the_document_packing import (
    MAX_NUMBER,
    need,
    pack,
    refuse,
    unpack,
)

Message = dict[str, Any]
Check = Callable[[Any, str], None]
REQUIRED: Final = object()


def _integer(low: int, high: int) -> Check:
    def check(value: Any, path: str) -> None:
        need(type(value) is int and low <= value <= high, path, f"expected {low} to {high}")

    return check


def _text(low: int, high: int) -> Check:
    def check(value: Any, path: str) -> None:
        need(isinstance(value, str), path, "expected text")
        need(low <= len(value) <= high, path, f"expected {low} to {high} characters")

    return check


def _digits(count: int) -> Check:
    def check(value: Any, path: str) -> None:
        need(isinstance(value, str), path, "expected text")
        need(re.fullmatch(f"[0-9a-f]{{{count}}}", value), path, f"expected {count} digits")

    return check


def _one_of(*names: str) -> Check:
    def check(value: Any, path: str) -> None:
        need(isinstance(value, str) and value in names, path, f"expected one of {names}")

    return check


def _boolean(value: Any, path: str) -> None:
    need(isinstance(value, bool), path, "expected true or false")


def _ascending(item: Check, low: int, high: int) -> Check:
    def check(value: Any, path: str) -> None:
        need(isinstance(value, list), path, "expected a list")
        need(low <= len(value) <= high, path, f"expected {low} to {high} of them")
        for i, entry in enumerate(value):
            item(entry, f"{path}[{i}]")
            need(i == 0 or entry > value[i - 1], f"{path}[{i}]", "expected ascending ones")

    return check


def _range(end: int) -> Check:
    def check(value: Any, path: str) -> None:
        need(isinstance(value, list) and len(value) == 2, path, "expected [first, count]")
        first, count = value
        _integer(0, end)(first, path)
        _integer(1, end)(count, path)
        need(first + count <= end, path, f"expected an end of at most {end}")

    return check


def _ranges(low: int, high: int, end: int) -> Check:
    def check(value: Any, path: str) -> None:
        need(isinstance(value, list), path, "expected a list")
        need(low <= len(value) <= high, path, f"expected {low} to {high} of them")
        for i, entry in enumerate(value):
            _range(end)(entry, f"{path}[{i}]")
            begins = value[i - 1][0] + value[i - 1][1] if i else 0
            need(entry[0] >= begins, f"{path}[{i}]", "begins before the end of the last")

    return check


def _or_nil(item: Check) -> Check:
    def check(value: Any, path: str) -> None:
        if value is not None:
            item(value, path)

    return check


def _tables(value: Any, path: str) -> None:
    need(isinstance(value, list), path, "expected a list")
    need(1 <= len(value) <= 256, path, "expected 1 to 256 of them")
    for i, entry in enumerate(value):
        at = f"{path}[{i}]"
        need(isinstance(entry, dict), at, "expected a map")
        value[i] = table = _read_fields(TABLE, entry, at)
        after = value[i - 1]["table"] if i else -1
        need(table["table"] > after, f"{at}.table", "expected ascending ones")
        for j, (first, count) in enumerate(table["null"]):
            need(first + count <= table["num_blocks"], f"{at}.null[{j}]", "beyond the list")
    need(sum(len(table["null"]) for table in value) <= 4096, path, "more than 4,096 null ranges")


def _pool_files(value: Any, path: str) -> None:
    need(isinstance(value, list), path, "expected a list")
    need(1 <= len(value) <= 4096, path, "expected 1 to 4,096 of them")
    for i, entry in enumerate(value):
        at = f"{path}[{i}]"
        need(isinstance(entry, dict), at, "expected a map")
        value[i] = _read_fields(POOL_FILE, entry, at)
        need(i == 0 or entry["pool"] > value[i - 1]["pool"], f"{at}.pool", "is not ascending")


def _file_name(value: Any, path: str) -> None:
    need(isinstance(value, str) and len(value) <= 255, path, "expected text of at most 255")
    need(re.fullmatch("transload-[0-9a-z-]+", value), path, "is no name of a pool's file")


def _block_ids(value: Any, path: str) -> None:
    need(isinstance(value, list), path, "expected a list")
    need(1 <= len(value) <= 4096, path, "expected 1 to 4,096 of them")
    for i, entry in enumerate(value):
        _range(2**32)(entry, f"{path}[{i}]")


_name: Final = _text(1, 256)
_people: Final = _text(0, 256)
_reason: Final = _text(0, 500)
_id: Final = _integer(1, 2**32 - 1)
_count: Final = _integer(0, MAX_NUMBER)
_data_bytes: Final = _integer(4096, 8_388_608)
_features: Final = _ascending(_text(1, 64), 0, 64)
_stream: Final = _integer(1, 16)
_ms: Final = _integer(0, 2**32 - 1)

Fields = dict[str, tuple[Check, Any]]


def _fields(**fields: Check | tuple[Check, Any]) -> Fields:
    return {k: v if isinstance(v, tuple) else (v, REQUIRED) for k, v in fields.items()}


TABLE: Final = _fields(
    table=_count, num_blocks=_integer(0, 2**32), null=(_ranges(0, 4096, 2**32), [])
)
POOL_FILE: Final = _fields(pool=_text(1, 512), name=_file_name, num_bytes=_integer(1, MAX_NUMBER))
_OF_A_HANDOFF: Final = _fields(id=_id, handoff=_name)
_BYE: Final = _fields(reason=(_reason, ""))
CODES: Final = (
    *("bad_frame", "bad_message", "bad_descriptor", "bad_version", "bad_proof"),
    *("out_of_turn", "bad_read", "too_many", "busy", "internal"),
)

MESSAGES: Final[dict[str, dict[str, Fields]]] = {
    "reader": {
        "hello": _fields(
            versions=_ascending(_integer(1, 65535), 1, 16),
            engine=_people,
            generation=_name,
            nonce=_digits(64),
            max_data_bytes=_data_bytes,
            features=(_features, []),
        ),
        "prove": _fields(proof=_digits(64)),
        "attach": _fields(session=_digits(32), stream=_stream, proof=_digits(64)),
        "open": _fields(id=_id, handoff=_name, lease=_name, reader=_name),
        "read": _fields(
            id=_id,
            handoff=_name,
            group=_text(1, 512),
            blocks=_ranges(1, 4096, 2**32),
            layers=(_or_nil(_range(4096)), None),
            heads=(_or_nil(_range(65536)), None),
            form=(_one_of("block", "page", "elements"), "elements"),
            stream=(_integer(0, 16), 0),
            checksums=(_boolean, False),
        ),
        "cancel": _fields(id=_id),
        "map": _fields(id=_id, handoff=_name, table=_count, blocks=_ranges(1, 4096, 2**32)),
        "confirm": _OF_A_HANDOFF,
        "renew": _OF_A_HANDOFF,
        "done": _OF_A_HANDOFF,
        "release": _OF_A_HANDOFF,
        "forgo": _fields(id=_id, handoff=_name, lease=_name),
        "bye": _BYE,
    },
    "holder": {
        "welcome": _fields(
            version=_integer(1, 65535),
            engine=_people,
            generation=_name,
            session=_digits(32),
            nonce=_digits(64),
            proof=_digits(64),
            max_data_bytes=_data_bytes,
            max_streams=(_integer(0, 16), 0),
            features=(_features, []),
        ),
        "accept": _fields(verdict=_one_of("identical", "lossless", "lossy")),
        "refuse": _fields(path=_text(0, 512), reason=_reason),
        "attached": _fields(stream=_stream),
        "lease": _fields(
            id=_id,
            num_tokens=_integer(1, MAX_NUMBER),
            tables=_tables,
            readers=_integer(1, 65536),
            left=_integer(1, 65536),
            expires_ms=_ms,
            num_encoder_tokens=(_count, 0),
        ),
        "read_end": _fields(id=_id, num_bytes=_count),
        "cancelled": _fields(id=_id),
        "mapped": _fields(id=_id, pools=_pool_files, blocks=_block_ids),
        "confirmed": _fields(id=_id, expires_ms=_ms),
        "ended": _fields(id=_id, left=_integer(0, 65536)),
        "expired": _fields(id=_id, why=_one_of("expired", "ended", "unknown", "other_lease")),
        "error": _fields(code=_one_of(*CODES), reason=_reason, id=(_integer(0, 2**32 - 1), 0)),
        "bye": _BYE,
    },
}

# 2: said before a proof was taken, or on a data stream.
SHORT: Final = ("hello", "welcome", "prove", "attach", "attached")

# 5: the answers of each request. 10: what an error may be of.
ANSWERS: Final[dict[str, tuple[str, ...]]] = {
    "open": ("lease", "expired", "error"),
    "read": ("read_end", "cancelled", "expired", "error"),
    "map": ("mapped", "expired", "error"),
    "confirm": ("confirmed", "expired", "error"),
    "renew": ("confirmed", "expired", "error"),
    "done": ("ended", "expired", "error"),
    "release": ("ended", "expired", "error"),
    "forgo": ("ended", "expired", "error"),
}


def _read_fields(fields: Fields, given: Message, path: str) -> Message:
    for name in given:
        if name not in fields and not name.startswith("x_"):
            refuse(f"{path}.{name}", "no such field")
    found: Message = {}
    for name, (check, default) in fields.items():
        need(name in given or default is not REQUIRED, f"{path}.{name}", "is missing")
        found[name] = given.get(name, default)
        if name in given:
            check(found[name], f"{path}.{name}")
    return found


def decode_message(body: bytes, sender: str) -> Message:
    """Read a message of `sender`, with its defaults and without extensions, or refuse it."""
    need(len(body) <= 65_536, "", "longer than a message")
    given = unpack(body)
    need(isinstance(given, dict), "", "expected a map")
    kind_of = given.pop("type", None)
    need(isinstance(kind_of, str) and kind_of in MESSAGES[sender], "type", "no such message")
    need(len(body) <= 4096 or kind_of not in SHORT, kind_of, "longer than before a proof")
    message = _read_fields(MESSAGES[sender][kind_of], given, kind_of)
    if kind_of == "lease":
        need(message["left"] <= message["readers"], "lease.left", "more than there are shares")
    return {"type": kind_of, **message}


def encode_message(message: Message, sender: str) -> bytes:
    """Write a message without its defaults; refuse it if the receiver would."""
    body = pack(without_defaults(message, sender))
    decode_message(body, sender)
    return body


def without_defaults(message: Message, sender: str) -> Message:
    """Leave out what need not be said."""
    fields = MESSAGES[sender][message["type"]]
    kept = {k: v for k, v in message.items() if k == "type" or v != fields[k][1]}
    if message["type"] == "lease":
        kept["tables"] = [
            {k: v for k, v in table.items() if v != TABLE[k][1]} for table in message["tables"]
        ]
    return kept
