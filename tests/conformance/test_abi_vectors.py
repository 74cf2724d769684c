"""This implementation against the vectors for all implementations, and the vectors themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

import make_abi_vectors
from transload_abi import text, vectors
from transload_abi.codecs import CODECS
from transload_abi.roles import ROLES

VECTORS = Path(__file__).parents[1] / "vectors" / "abi"
TOOLS = Path(make_abi_vectors.__file__).parent
MAX_TOTAL_BYTES = 3_000_000
"""What strangers are asked to fetch."""


def folders(kind: str) -> list[str]:
    return sorted(path.name for path in (VECTORS / kind).iterdir())


@pytest.mark.parametrize("name", folders("decode"))
def test_pages_hold_what_the_vector_says(name: str) -> None:
    assert list(vectors.check_decode(VECTORS / "decode" / name)) == []


@pytest.mark.parametrize("name", folders("convert"))
def test_blocks_become_what_the_vector_says(name: str) -> None:
    assert list(vectors.check_convert(VECTORS / "convert" / name)) == []


def files_below(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for kind in ("decode", "convert")
        for path in (root / kind).rglob("*")
        if path.is_file()
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
