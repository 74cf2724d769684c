"""Documents that every reader refuses, each for the reason that the index gives."""

import json
import tracemalloc
from pathlib import Path

import pytest

from transload_abi import errors
from transload_abi.errors import AbiError
from transload_abi.footprint import Budget
from transload_abi.limits import MAX_DOCUMENT_BYTES, MAX_PIECES
from transload_abi.text import read

VECTORS = Path(__file__).parents[2] / "vectors" / "abi"
REFUSED = VECTORS / "refused"
INDEX = json.loads((REFUSED / "index.json").read_text())

HEAD = b'{"abi":"kvabi/1","x_":'
PACKED_HEAD = b"\x82\xa3abi\xa7kvabi/1\xa2x_"
PACKED_COUNT = 40_000
PACKED_ARRAY = PACKED_HEAD + b"\xdd" + PACKED_COUNT.to_bytes(4, "big")

HOSTILE = {
    "brackets": b"[" * MAX_DOCUMENT_BYTES,
    "quotes": b'"' * MAX_DOCUMENT_BYTES,
    "escaped quotes": b'"' + b'\\"' * (MAX_DOCUMENT_BYTES // 2 - 1),
    "digits": HEAD + b"9" * (MAX_DOCUMENT_BYTES - len(HEAD) - 1) + b"}",
    "empty lists": HEAD + b"[" + b"[]," * 40_000 + b"1]}",
    "empty objects": HEAD + b"[" + b"{}," * 40_000 + b"1]}",
    "packed empty arrays": PACKED_ARRAY + b"\x90" * PACKED_COUNT,
    "packed empty maps": PACKED_ARRAY + b"\x80" * PACKED_COUNT,
    "packed arrays in arrays": b"\x91" * MAX_DOCUMENT_BYTES,
    "packed maps in maps": b"\x81\xa1a" * (MAX_DOCUMENT_BYTES // 3),
}
MOST_BYTES_PER_BYTE = 100
"""An empty dict for each byte of the document is the most that reading makes."""


@pytest.mark.parametrize("case", INDEX, ids=lambda case: case["file"])
def test_is_refused_by_name(case: dict[str, str]) -> None:
    with pytest.raises(AbiError) as caught:
        read((REFUSED / case["file"]).read_bytes())
    assert type(caught.value) is getattr(errors, case["error"])
    assert case["says"] in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_the_index_names_every_file_once() -> None:
    names = [case["file"] for case in INDEX]
    assert sorted([*names, "index.json"]) == sorted(path.name for path in REFUSED.iterdir())


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_memory_is_bounded_by_the_length(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(AbiError):
            read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES_PER_BYTE * len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa3abi\xa7kvabi/1\xa5pools\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\xa3abi",
        b"\x81\xa3abi\xdb\xff\xff\xff\xff",
    ],
)
def test_a_length_alone_takes_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(AbiError):
            read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16


def test_a_document_beyond_the_limit_is_not_looked_at() -> None:
    with pytest.raises(errors.LimitExceeded, match="expected 1048576 bytes or fewer, got 1048577"):
        read(b" " * (MAX_DOCUMENT_BYTES + 1))


@pytest.mark.parametrize("name", ["plain.json", "plain.msgpack"])
def test_a_document_cut_at_any_byte_is_malformed(name: str) -> None:
    data = (VECTORS / "accepted" / name).read_bytes().rstrip(b"\n")
    for end in range(len(data)):
        with pytest.raises(errors.MalformedDescriptor):
            read(data[:end])


def test_an_irregular_placement_stops_at_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = 0
    spend = Budget.spend

    def count(budget: Budget, pieces: int) -> None:
        nonlocal spent
        spend(budget, pieces)
        spent += pieces

    monkeypatch.setattr(Budget, "spend", count)
    with pytest.raises(errors.LimitExceeded, match="too irregular"):
        read((REFUSED / "too-irregular.json").read_bytes())
    assert spent <= MAX_PIECES
