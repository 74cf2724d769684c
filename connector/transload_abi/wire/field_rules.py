"""What each field of a message may hold: ranges of numbers, lengths of text and lists, as a table.

Types are the structs' own; a rule takes a value of the right type. The columns of `WIRE.md`,
section 5, are these rows.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from transload_abi.limits import (
    MAX_BLOCKS,
    MAX_GROUPS,
    MAX_HEADS,
    MAX_INTEGER,
    MAX_LAYERS,
    MAX_POOLS,
    MAX_TEXT_CHARS,
)
from transload_abi.tree import quote
from transload_abi.wire import limits, messages

Rule = Callable[[Any], str | None]
"""What is wrong with a value; None: nothing. A message that begins with `[` or `.` is below it."""

_HEX: Final = re.compile(r"[0-9a-f]*")
_FILE: Final = re.compile(f"{limits.FILE_PREFIX}[0-9a-z-]+")


class FieldError(ValueError):
    """A field beyond its limits.

    Attributes:
        field: Its path within the message.
        problem: What was expected and what came.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def check_fields(message: messages.Message) -> None:
    """See that every field is within its limits.

    Raises:
        FieldError: The first that is not.
    """
    for name, rule in _RULES[type(message)].items():
        problem = rule(getattr(message, name))
        if problem is not None:
            at, _, said = problem.partition(": ") if problem[0] in "[." else ("", "", problem)
            raise FieldError(name + at, said)
    if isinstance(message, messages.Lease) and message.left > message.readers:
        raise FieldError("left", f"expected at most {message.readers} readers, got {message.left}")


def _number(least: int, most: int) -> Rule:
    def problem(value: int) -> str | None:
        return None if least <= value <= most else f"expected {least} to {most}, got {value}"

    return problem


def _text(least: int, most: int) -> Rule:
    def problem(value: str) -> str | None:
        if least <= len(value) <= most:
            return None
        return f"expected {least} to {most} characters, got {len(value)}"

    return problem


def _hex(num_digits: int) -> Rule:
    def problem(value: str) -> str | None:
        if len(value) == num_digits and _HEX.fullmatch(value):
            return None
        return f"expected {num_digits} lower-case hex digits, got {quote(value)}"

    return problem


def _list(least: int, most: int, each: Rule) -> Rule:
    """So many items, each by a rule, ascending, none twice."""

    def problem(value: tuple[Any, ...]) -> str | None:
        if not least <= len(value) <= most:
            return f"expected {least} to {most} items, got {len(value)}"
        for index, item in enumerate(value):
            found = each(item)
            if found is not None:
                return f"[{index}]: {found}"
            if index and item <= value[index - 1]:
                return f"[{index}]: expected more than {quote(value[index - 1])}"
        return None

    return problem


def _range(most: int) -> Rule:
    """One range; None is no range, which is all."""

    def problem(value: messages.Range | None) -> str | None:
        return None if value is None else _in_order((value,), most)

    return problem


def _ranges(least: int, most: int) -> Rule:
    """Ranges below `most` that ascend and have nothing in common."""

    def problem(value: tuple[messages.Range, ...]) -> str | None:
        if not least <= len(value) <= limits.MAX_RANGES:
            return f"expected {least} to {limits.MAX_RANGES} ranges, got {len(value)}"
        return _in_order(value, most, is_list=True)

    return problem


def _in_order(
    ranges: tuple[messages.Range, ...], most: int, *, is_list: bool = False
) -> str | None:
    end = 0
    for index, (first, count) in enumerate(ranges):
        problem = _beyond(first, count, end, most)
        if problem is not None:
            return f"[{index}]: {problem}" if is_list else problem
        end = first + count
    return None


def _beyond(first: int, count: int, least: int, most: int) -> str | None:
    """What is wrong with a range that may begin at `least` and end at `most`."""
    if count < 1:
        return f"expected a count of 1 or more, got {count}"
    if first < least:
        return f"expected a first of {least} or more, got {first}"
    if first + count > most:
        return f"expected an end of at most {most}, got {first + count}"
    return None


def _block_ids(value: tuple[messages.Range, ...]) -> str | None:
    """Ranges of block ids, in any order."""
    if not 1 <= len(value) <= limits.MAX_RANGES:
        return f"expected 1 to {limits.MAX_RANGES} ranges, got {len(value)}"
    for index, (first, count) in enumerate(value):
        problem = _beyond(first, count, 0, MAX_BLOCKS)
        if problem is not None:
            return f"[{index}]: {problem}"
    return None


def _pool_files(value: tuple[messages.PoolFile, ...]) -> str | None:
    if not 1 <= len(value) <= MAX_POOLS:
        return f"expected 1 to {MAX_POOLS} pools, got {len(value)}"
    for index, each in enumerate(value):
        for name, rule in _POOL_FILE.items():
            problem = rule(getattr(each, name))
            if problem is not None:
                return f"[{index}].{name}: {problem}"
        if index and each.pool <= value[index - 1].pool:
            return f"[{index}].pool: expected more than {quote(value[index - 1].pool)}"
    return None


def _file_name(value: str) -> str | None:
    if len(value) <= limits.MAX_FILE_CHARS and _FILE.fullmatch(value):
        return None
    return (
        f"expected {limits.FILE_PREFIX} and more, at most {limits.MAX_FILE_CHARS} characters of "
        f"0-9a-z-, got {quote(value)}"
    )


def _tables(value: tuple[messages.Table, ...]) -> str | None:
    if not 1 <= len(value) <= MAX_GROUPS:
        return f"expected 1 to {MAX_GROUPS} tables, got {len(value)}"
    num_ranges = 0
    last = -1
    for index, table in enumerate(value):
        num_ranges += len(table.null)
        if not last < table.table <= MAX_INTEGER:
            return f"[{index}].table: expected {last + 1} to {MAX_INTEGER}, got {table.table}"
        last = table.table
        if not 0 <= table.num_blocks <= MAX_BLOCKS:
            return f"[{index}].num_blocks: expected 0 to {MAX_BLOCKS}, got {table.num_blocks}"
        found = _in_order(table.null, table.num_blocks, is_list=True)
        if found is not None:
            return f"[{index}].null{found}"
    if num_ranges > limits.MAX_RANGES:
        return f"expected at most {limits.MAX_RANGES} null ranges in all, got {num_ranges}"
    return None


_ID: Final = {"id": _number(1, limits.MAX_ID)}
_NAME: Final = _text(1, limits.MAX_NAME_CHARS)
_HANDOFF: Final[Mapping[str, Rule]] = {**_ID, "handoff": _NAME}
_REASON: Final = _text(0, limits.MAX_REASON_CHARS)
_NONCE: Final = _hex(limits.NONCE_DIGITS)
_SIDE: Final[Mapping[str, Rule]] = {
    "engine": _text(0, limits.MAX_NAME_CHARS),
    "generation": _NAME,
    "nonce": _NONCE,
    "max_data_bytes": _number(limits.MIN_DATA_BYTES, limits.MAX_DATA_BYTES),
    "features": _list(0, limits.MAX_FEATURES, _text(1, limits.MAX_FEATURE_CHARS)),
}
_VERSION: Final = _number(1, limits.MAX_VERSION)
_TERM: Final = _number(0, limits.MAX_TERM_MS)
_NUM_BYTES: Final = _number(0, MAX_INTEGER)
_POOL_FILE: Final[Mapping[str, Rule]] = {
    "pool": _text(1, MAX_TEXT_CHARS),
    "name": _file_name,
    "num_bytes": _number(1, MAX_INTEGER),
}

_RULES: Final[Mapping[type[messages.Message], Mapping[str, Rule]]] = {
    messages.Hello: {"versions": _list(1, limits.MAX_VERSIONS, _VERSION), **_SIDE},
    messages.Prove: {"proof": _NONCE},
    messages.Attach: {
        "session": _hex(limits.SESSION_DIGITS),
        "stream": _number(1, limits.MAX_STREAMS),
        "proof": _NONCE,
    },
    messages.Open: {**_HANDOFF, "lease": _NAME, "reader": _NAME},
    messages.Read: {
        **_HANDOFF,
        "group": _text(1, MAX_TEXT_CHARS),
        "blocks": _ranges(1, MAX_BLOCKS),
        "layers": _range(MAX_LAYERS),
        "heads": _range(MAX_HEADS),
        "stream": _number(0, limits.MAX_STREAMS),
    },
    messages.Cancel: _ID,
    messages.Map: {
        **_HANDOFF,
        "table": _number(0, MAX_INTEGER),
        "blocks": _ranges(1, MAX_BLOCKS),
    },
    messages.Confirm: _HANDOFF,
    messages.Renew: _HANDOFF,
    messages.Done: _HANDOFF,
    messages.Release: _HANDOFF,
    messages.Forgo: {**_HANDOFF, "lease": _NAME},
    messages.Welcome: {
        "version": _VERSION,
        **_SIDE,
        "session": _hex(limits.SESSION_DIGITS),
        "proof": _NONCE,
        "max_streams": _number(0, limits.MAX_STREAMS),
    },
    messages.Accept: {},
    messages.Refuse: {"path": _text(0, MAX_TEXT_CHARS), "reason": _REASON},
    messages.Attached: {"stream": _number(1, limits.MAX_STREAMS)},
    messages.Lease: {
        **_ID,
        "num_tokens": _number(1, MAX_INTEGER),
        "num_encoder_tokens": _number(0, MAX_INTEGER),
        "tables": _tables,
        "readers": _number(1, limits.MAX_READERS),
        "left": _number(1, limits.MAX_READERS),
        "expires_ms": _TERM,
    },
    messages.ReadEnd: {**_ID, "num_bytes": _NUM_BYTES},
    messages.Cancelled: _ID,
    messages.Mapped: {**_ID, "pools": _pool_files, "blocks": _block_ids},
    messages.Confirmed: {**_ID, "expires_ms": _TERM},
    messages.Ended: {**_ID, "left": _number(0, limits.MAX_READERS)},
    messages.Expired: _ID,
    messages.Error: {"id": _number(0, limits.MAX_ID), "reason": _REASON},
    messages.Bye: {"reason": _REASON},
}
