"""WIRE.md and the code say the same: fields, limits, turns, codes, the example byte for byte."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from transload_abi import limits as descriptor_limits
from transload_abi.wire import errors, frames, limits, messages
from transload_abi.wire.codec import decode
from transload_abi.wire.holder_state import HolderState
from transload_abi.wire.holder_table import TABLE as HOLDER_TABLE
from transload_abi.wire.reader_state import ReaderState
from transload_abi.wire.reader_table import TABLE as READER_TABLE

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "connector" / "WIRE.md").read_text()
SESSION: dict[str, Any] = json.loads(
    (ROOT / "tests" / "vectors" / "wire" / "sessions" / "control-stream.json").read_text()
)

_PRINTED_FRAME = re.compile(
    r"^(reader|holder): (\w+), (\d+) bytes\n((?:  [^\n]*\n)+)", re.MULTILINE
)
_TEXT = re.compile(r"\s+")


def _section(number: int) -> str:
    start = DOCUMENT.index(f"## {number}. ")
    end = DOCUMENT.find("\n## ", start)
    return DOCUMENT[start : end if end > 0 else None]


def _rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table behind a line; an empty first cell is that of the row above."""
    table = re.search(r"\n\|[^\n]*\n\|[-| ]+\n((?:\|[^\n]*\n)+)", text[text.index(heading) :])
    assert table
    rows: list[list[str]] = []
    for line in table[1].strip().split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        cells[0] = cells[0] or rows[-1][0]
        rows.append(cells)
    return rows


def _names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def _default(field: msgspec.structs.FieldInfo) -> str | None:
    """As the document writes it; None where the field must be there."""
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return None
    if field.default_factory is not msgspec.NODEFAULT or field.default == ():
        return "[]"
    return "nil" if field.default is None else json.dumps(field.default)


@pytest.mark.parametrize(
    ("heading", "union"),
    [
        ("### From the reader", messages.ReaderMessage),
        ("### From the holder", messages.HolderMessage),
    ],
)
def test_every_field_has_a_row_with_its_default(heading: str, union: Any) -> None:
    told = {}
    for message, field, kind, _ in _rows(_section(5), heading):
        default = re.search(r" \[(.*)\]$", kind)
        told[message.strip("`"), field.strip("`")] = default[1] if default else None
    assert told == {
        (struct.__struct_config__.tag, field.name): _default(field)
        for struct in get_args(union)
        for field in msgspec.structs.fields(struct)
    }


@pytest.mark.parametrize(
    ("row", "numbers"),
    [
        (
            "| `hello` | `versions`",
            [limits.MAX_VERSIONS, limits.MAX_VERSION],
        ),
        ("| | `engine` | text | for people", [limits.MAX_NAME_CHARS]),
        ("| | `max_data_bytes` | int | of data", [limits.MIN_DATA_BYTES, limits.MAX_DATA_BYTES]),
        ("| | `features` | [text] [[]] | at most", [limits.MAX_FEATURES, limits.MAX_FEATURE_CHARS]),
        ("| | `stream` | int | 1 to", [limits.MAX_STREAMS]),
        ("| | `group`", [descriptor_limits.MAX_TEXT_CHARS]),
        ("| | `blocks`", [limits.MAX_RANGES]),
        ("| | `layers`", [descriptor_limits.MAX_LAYERS]),
        ("| | `heads`", [descriptor_limits.MAX_HEADS]),
        ("| | `max_streams`", [limits.MAX_STREAMS]),
        ("| `refuse` | `path`", [descriptor_limits.MAX_TEXT_CHARS]),
        ("| | `tables`", [descriptor_limits.MAX_GROUPS]),
        ("| | `readers`", [limits.MAX_READERS]),
        ("| | `expires_ms` | int | time", [limits.MAX_TERM_MS]),
        ("| | `left` | int | shares that have not ended, 0", [limits.MAX_READERS]),
        ("`null` holds the positions", [limits.MAX_RANGES]),
        ("brackets; no bracket", [limits.MAX_NAME_CHARS, limits.MAX_ID, limits.NONCE_DIGITS]),
        ("`reason`: text of at most", [limits.MAX_REASON_CHARS]),
        ("gets one answer with the same `id`", [limits.MAX_OPEN]),
    ],
)
def test_limits_are_those_of_the_code(row: str, numbers: list[int]) -> None:
    start = DOCUMENT.index(row)
    told = DOCUMENT[start : start + 400].split("\n\n")[0].replace(",", "")
    for number in numbers:
        assert re.search(rf"\b{number}\b", told), number


def test_the_limits_of_frames_are_those_of_the_code() -> None:
    rows = {row[0]: row[2].replace(",", "") for row in _rows(_section(2), "| 5..8 | 0 |")}
    least = limits.MAX_UNPROVEN_BYTES
    assert rows[str(frames.MESSAGE)] == f"{limits.MAX_MESSAGE_BYTES} bytes; {least} before a proof"
    assert rows[str(frames.DATA)].startswith(f"{frames.DATA_HEADER_BYTES} + `max_data_bytes`")
    assert rows[str(frames.DESCRIPTOR)] == f"{descriptor_limits.MAX_DOCUMENT_BYTES} bytes"
    assert f"a header of {frames.HEADER_BYTES} bytes" in DOCUMENT


def test_numbers_of_reads_streams_and_pieces_are_those_of_the_code() -> None:
    assert f"At most {limits.MAX_READS} reads" in _section(9)
    assert f"At most {limits.MAX_OPEN:,} are open in a session" in _TEXT.sub(" ", _section(7))
    assert f"the last {limits.MAX_OPEN:,} that were closed" in _TEXT.sub(" ", _section(7))
    assert f"more than {limits.MAX_OPEN:,} without an answer" in _TEXT.sub(" ", _section(5))
    assert f"up to {limits.MAX_STREAMS} *data streams*" in _section(1)


def test_waits_are_those_of_the_code() -> None:
    rows = _rows(_section(11), "## 11")
    opening = [row[2] for row in rows if "from" in row[1]]
    assert [re.findall(r"\d+", each) for each in opening] == [[f"{limits.OPENING_S:g}"]] * 3
    silences = [row[2] for row in rows if "byte" in row[1]]
    assert [re.findall(r"\d+", each) for each in silences] == [[f"{limits.SILENCE_S:g}"]] * 2


def test_every_error_is_told_with_whether_it_ends_the_session() -> None:
    told = {row[0].strip("`"): row[2] for row in _rows(_section(10), "## 10")}
    assert told.keys() == set(get_args(messages.Code))
    tree = [errors.WireError]
    for kind in tree:
        tree += kind.__subclasses__()
    for kind in tree:
        if kind.code not in ("out_of_turn", "internal"):
            said = "always of the session" if kind.is_fatal else "always of a request"
            assert said in told[kind.code], kind


def test_forms_verdicts_and_reasons_are_told() -> None:
    assert set(get_args(messages.Form)) <= _names(_section(8))
    assert set(get_args(messages.Gone)) <= _names(_section(7))
    accept = next(row for row in _rows(_section(5), "### From the holder") if row[0] == "`accept`")
    assert _names(accept[3]) == {"identical", "lossless", "lossy"}


def _turns(heading: str) -> dict[str, set[str]]:
    """By state what may come, as the document has it."""
    told: dict[str, set[str]] = {}
    for row in _rows(_section(6), heading):
        names = {"descriptor"} if row[1] == "the descriptor" else _names(row[1])
        told.setdefault(row[0], set()).update(names)
    return told


def _taken(table: Any, state: Any, also: dict[str, str]) -> set[str]:
    """By a machine in a state: messages but `bye`, and events that stand for frames."""
    found = set()
    for at, event in table:
        if at is state and issubclass(event, messages.Message):
            found.add(str(event.__struct_config__.tag))
        elif at is state and event.__name__ in also:
            found.add(also[event.__name__])
    return found - {"bye"}


def test_the_holder_takes_what_the_document_lets_come() -> None:
    told = _turns("The holder's side of a control stream")
    told["HELLO"].remove("attach")  # the reception takes it
    also = {"Compatible": "descriptor"}
    assert told == {
        state.name: _taken(HOLDER_TABLE, state, also)
        for state in HolderState
        if state is not HolderState.ENDED
    }


def test_the_reader_takes_what_the_document_lets_come() -> None:
    told = _turns("The reader's side:")
    also = {"DescriptorCame": "descriptor"}
    for state in ReaderState:
        if state in (ReaderState.NEW, ReaderState.ENDED):
            continue
        assert told[state.name] == _taken(READER_TABLE, state, also), state


def test_the_example_is_the_session_of_the_vectors() -> None:
    printed = _PRINTED_FRAME.findall(_section(14))
    assert len(printed) == len(SESSION["steps"])
    for (sender, what, num_bytes, text), step in zip(printed, SESSION["steps"], strict=True):
        raw = _TEXT.sub("", text)
        assert (sender, int(num_bytes)) == (step["from"], len(step["bytes"]) // 2)
        if raw.endswith("..."):
            assert (what, "descriptor" in step) == ("descriptor", True)
            assert step["bytes"].startswith(raw.removesuffix("..."))
        else:
            assert raw == step["bytes"]
            assert what == step.get("message", {"type": "data"})["type"]


def test_the_printed_messages_are_what_they_are_called() -> None:
    for sender, what, _, text in _PRINTED_FRAME.findall(_section(14)):
        if what not in ("descriptor", "data"):
            message = decode(bytes.fromhex(_TEXT.sub("", text))[8:], sender)
            assert message.__struct_config__.tag == what


def test_the_numbers_told_of_the_data_are_theirs() -> None:
    text = next(row[3] for row in _PRINTED_FRAME.findall(_section(14)) if row[1] == "data")
    raw = bytes.fromhex(_TEXT.sub("", text))
    memory = bytes.fromhex(SESSION["holder"]["pools"]["kv"])
    assert raw[32:] == memory[160:192]
    assert raw[32] == 0x63 == (7 * 160 + 3) % 256
    assert int.from_bytes(raw[24:28], "little") == frames.checksum_of(raw[32:])


def test_the_document_is_no_wider_than_its_tables() -> None:
    wide = [line for line in DOCUMENT.split("\n") if len(line) > 104 and line[0] not in "| "]
    assert wide == []


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", DOCUMENT)
    assert targets
    assert all((ROOT / "connector" / each).exists() for each in targets)
