"""This implementation against the vectors for all implementations, and the vectors themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import make_abi_vectors
from abi_vectors import packed, rounding
from transload_abi import text, vectors
from transload_abi.codecs import CODECS
from transload_abi.roles import ROLES

VECTORS = Path(__file__).parents[1] / "vectors" / "abi"
TOOLS = Path(make_abi_vectors.__file__).parent
RECORDED = json.loads((VECTORS.parent / "numbers.json").read_bytes())
BY_HAND = ("plain.json", "plain.msgpack", "extensions.json")
MAX_TOTAL_BYTES = 7_000_000
"""What strangers are asked to fetch."""


def folders(kind: str) -> list[str]:
    return sorted(path.name for path in (VECTORS / kind).iterdir())


@pytest.mark.parametrize("name", folders("decode"))
def test_pages_hold_what_the_vector_says(name: str) -> None:
    assert list(vectors.check_decode(VECTORS / "decode" / name)) == []


@pytest.mark.parametrize("name", folders("convert"))
def test_blocks_become_what_the_vector_says(name: str) -> None:
    assert list(vectors.check_convert(VECTORS / "convert" / name)) == []


def entries(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / kind / "index.json").read_bytes())
    return found


@pytest.mark.parametrize("entry", entries("accepted"), ids=lambda entry: entry["file"])
def test_documents_say_what_the_index_says(entry: dict[str, Any]) -> None:
    assert list(vectors.check_accepted(VECTORS / "accepted", entry)) == []


@pytest.mark.parametrize("entry", entries("refused"), ids=lambda entry: entry["file"])
def test_documents_that_nobody_may_read_are_refused(entry: dict[str, Any]) -> None:
    assert list(vectors.check_refused(VECTORS / "refused", entry)) == []


def files_below(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for kind in ("decode", "convert", "accepted")
        for path in (root / kind).rglob("*")
        if path.is_file() and path.name not in BY_HAND
    }


def test_the_tool_writes_the_same_bytes_again(tmp_path: Path) -> None:
    make_abi_vectors.make(tmp_path)
    made, kept = files_below(tmp_path), files_below(VECTORS)
    assert made.keys() == kept.keys()
    assert [name for name in kept if made[name] != kept[name]] == []
    assert sum(map(len, kept.values())) < MAX_TOTAL_BYTES


def test_the_tool_knows_nothing_of_the_implementation() -> None:
    sources = [*(TOOLS / "abi_vectors").glob("*.py"), TOOLS / "make_abi_vectors.py"]
    assert len(sources) > 5
    assert [path.name for path in sources if "transload_abi" in path.read_text()] == []


def test_the_index_of_what_is_accepted_names_every_file_once() -> None:
    names = [entry["file"] for entry in entries("accepted")]
    assert sorted([*names, "index.json"]) == folders("accepted")
    assert set(BY_HAND) < set(names)


@pytest.mark.parametrize("dtype", sorted(RECORDED["encode"]))
def test_the_tool_rounds_as_recorded(dtype: str) -> None:
    pairs = RECORDED["encode"][dtype]
    values = np.frombuffer(bytes.fromhex("".join(value for value, _ in pairs)), ">f4")
    found = rounding.nearest(values.astype(np.float32), dtype)
    assert found.tolist() == [bits for _, bits in pairs]


def test_the_tool_rounds_four_bits_to_the_even_of_two() -> None:
    values = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 7.0, -0.25, -7.0], np.float32)
    found = rounding.nearest(values, "e2m1")
    assert found.tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 7, 8, 15]


@pytest.mark.parametrize(
    ("peak", "scale"), [(6.0, 127), (6.1, 128), (12.0, 128), (2.9, 126), (0.0, 127), (1e-38, 0)]
)
def test_the_tool_takes_the_least_power_of_two(peak: float, scale: int) -> None:
    values = np.array([0.0, -peak], np.float32)
    _, scales = rounding.stored_under_scales(values, "e2m1", "ue8m0", 1)
    assert scales.tolist() == [scale]


def test_the_tool_hides_a_zero_point_in_the_lowest_bits_of_a_scale() -> None:
    found, scales = rounding.stored_int4(np.array([[-2.0, 0.0, 5.5]], np.float32))
    assert scales.tolist() == [0x3F000004]
    assert found.tolist() == [[0, 4, 15]]


def test_the_tool_packs_as_the_document_says() -> None:
    assert packed.pack({"b": [0, 127, 128, 255, 256, 65536, 2**32], "a": None}) == bytes.fromhex(
        "82 a161 c0 a162 97 00 7f cc80 ccff cd0100 ce00010000 cf0000000100000000"
    )
    assert packed.pack([-1, -32, -33, -128, -129, -(2**53) + 1, True, False]) == bytes.fromhex(
        "98 ff e0 d0df d080 d1ff7f d3ffe0000000000001 c3 c2"
    )
    assert packed.pack("x" * 31)[:1] == b"\xbf"
    assert packed.pack("x" * 32)[:2] == b"\xd9\x20"
    assert packed.pack("x" * 256)[:3] == b"\xda\x01\x00"
    assert packed.pack([0] * 16)[:3] == b"\xdc\x00\x10"
    assert packed.pack({f"{each:02}": 0 for each in range(16)})[:3] == b"\xde\x00\x10"


def test_every_kind_is_decoded_and_moved_somewhere() -> None:
    for kind, pattern in (("decode", "descriptor.json"), ("convert", "dst.json")):
        seen = {
            group["kind"]
            for path in (VECTORS / kind).glob(f"*/{pattern}")
            for group in json.loads(path.read_bytes())["groups"]
        }
        assert seen >= {"full", "sliding_window", "chunked_local", "mla", "cross", "recurrent"}
        assert "ring" in seen


def test_every_role_codec_and_dtype_of_a_value_is_decoded_somewhere() -> None:
    seen: set[tuple[str, str, str]] = set()
    for name in folders("decode"):
        d = text.read((VECTORS / "decode" / name / "descriptor.json").read_bytes())
        seen |= {(g.codec.id, role.role, role.dtype) for g in d.groups for role in g.roles}
    assert {role for _, role, _ in seen} == set(ROLES)
    assert {codec for codec, _, _ in seen} == set(CODECS)
    due = {
        dtype
        for rule in CODECS.values()
        for roles in rule.role_sets
        for dtypes in roles.values()
        for dtype in dtypes
    }
    assert {dtype for _, _, dtype in seen} == due


def test_every_verdict_is_asked_for() -> None:
    cases: list[dict[str, Any]] = [
        json.loads((VECTORS / "convert" / name / "case.json").read_bytes())
        for name in folders("convert")
    ]
    assert {case["verdict"] for case in cases} == {"identical", "lossless", "lossy", "refused"}
    assert max(len(case["sources"]) for case in cases) > 1
    assert {case.get("error", "") for case in cases} == {"", "plan", "missing"}
