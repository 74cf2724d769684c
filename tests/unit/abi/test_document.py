"""ABI.md and the code say the same: names, limits, codecs, and the example byte for byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from transload_abi import limits
from transload_abi.codecs import CODECS
from transload_abi.dtypes import DTYPES, Dtype
from transload_abi.fingerprints import of_descriptor
from transload_abi.oracle import read_values
from transload_abi.roles import ROLES
from transload_abi.text import encode_json, encode_msgpack, read
from transload_abi.types import Kind, Memory

DOCUMENT = (Path(__file__).parents[3] / "connector" / "ABI.md").read_text()
EXAMPLE = DOCUMENT[DOCUMENT.index("## 11. An example") : DOCUMENT.index("## 12.")]


def _blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", EXAMPLE, re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


def _rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a line that begins with the heading."""
    text = "\n" + DOCUMENT[DOCUMENT.index(heading) :]
    table = re.search(r"\n\|[^\n]*\n\|[-| ]+\n((?:\|[^\n]*\n)+)", text)
    assert table
    return [[cell.strip() for cell in row.split(" | ")] for row in table[1].strip().split("\n")]


def _names(heading: str) -> set[str]:
    return {name for row in _rows(heading) for name in re.findall(r"`(\w+)`", row[0])}


def test_the_example_is_canonical_text() -> None:
    text = _blocks("json")[0].replace("\n", "")
    assert encode_json(read(text.encode())).decode() == text


def test_the_example_has_its_fingerprints_and_its_twin() -> None:
    descriptor = read(_blocks("json")[0].encode())
    told = dict(line.split() for line in _blocks("")[0].strip().splitlines())
    assert of_descriptor(descriptor)._asdict() == told
    twin = re.search(r"twin is (\d+) bytes and begins `([0-9a-f ]+)`", EXAMPLE)
    assert twin
    assert len(encode_msgpack(descriptor)) == int(twin[1])
    assert encode_msgpack(descriptor).startswith(bytes.fromhex(twin[2]))


def test_the_example_decodes_to_its_numbers() -> None:
    descriptor = read(_blocks("json")[0].encode())
    page = bytes.fromhex(_blocks("")[1].replace("\n", " "))
    memory = {"kv": np.frombuffer(bytes(32) + page, np.uint8).copy()}
    k, v = (read_values(descriptor, memory, "attention", role, [1])[0, 0, 0] for role in "kv")
    assert k.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert v.tolist() == [[-1, -2, -3, -4], [0.5, 0.25, 0.125, 0]]


def test_names_are_those_of_the_code() -> None:
    assert _names("| `kind` | a block holds") == set(get_args(Kind))
    assert _names("| role | axes") == set(ROLES)
    assert _names("| dtype | bits") == set(DTYPES)
    assert _names("| id | roles and dtypes") == set(CODECS)
    memory = next(row for row in _rows("### Pool") if row[0] == "| `memory`")
    assert set(re.findall(r"`(\w+)`", memory[2])) == set(get_args(Memory))


def test_axes_and_bits_are_those_of_the_code() -> None:
    for row in _rows("| role | axes"):
        for name in re.findall(r"`(\w+)`", row[0]):
            assert tuple(row[1].split()) == ROLES[name].axes
    for row in _rows("| dtype | bits"):
        names, bits = re.findall(r"`(\w+)`", row[0]), [int(each) for each in row[1].split(",")]
        for name, each in zip(names, bits * len(names) if len(bits) == 1 else bits, strict=True):
            assert DTYPES[name].bits == each


ROWS = {re.findall(r"`(\w+)`", row[0])[0]: row for row in _rows("| id | roles and dtypes")}


@pytest.mark.parametrize("name", CODECS)
def test_parameters_of_codecs_are_those_of_the_code(name: str) -> None:
    rule = CODECS[name]
    told = set(re.findall(r"`([\w.]+)`", ROWS[name][3]))
    assert told == {
        *(["scales.ROLE"] if rule.has_scales_param or rule.may_have_scales_param else []),
        *(["rotation.ROLE"] if rule.may_be_rotated else []),
        *rule.text_params,
        *rule.integer_params,
    }
    assert ("may be" in ROWS[name][3]) == (rule.may_have_scales_param or rule.may_be_rotated)
    assert ("not defined here" in ROWS[name][2]) != rule.has_values


def test_dtypes_and_roles_of_codecs_are_those_of_the_code() -> None:
    for name, rule in CODECS.items():
        told = set(re.findall(r"`(\w+)`", ROWS[name][1]))
        roles = {role for each in rule.role_sets for role in each}
        assert told & set(ROLES) == roles
        dtypes = {dtype for each in rule.role_sets for some in each.values() for dtype in some}
        if "an 8-bit float" in ROWS[name][1]:
            told |= {dtype for dtype, each in DTYPES.items() if _is_8_bit_float(each)}
        assert told & set(DTYPES) == dtypes


def _is_8_bit_float(rule: Dtype) -> bool:
    return (rule.bits, rule.kind) == (8, "float")


def test_limits_are_those_of_the_code() -> None:
    text = DOCUMENT[DOCUMENT.index("| of | at most |") : DOCUMENT.index("| bytes of a pool")]
    numbers = [
        2 ** int(each[2:]) if each.startswith("2^") else int(each.replace(",", ""))
        for each in re.findall(r"2\^\d+|\d[\d,]*", text.replace(", in either", ""))
    ]
    assert numbers == [
        limits.MAX_DOCUMENT_BYTES,
        limits.MAX_DEPTH,
        limits.MAX_POOLS,
        limits.MAX_GROUPS,
        limits.MAX_LAYERS,
        limits.MAX_TERMS,
        limits.MAX_PARAMS,
        limits.MAX_PARAM_ITEMS,
        limits.MAX_HEADS,
        limits.MAX_BLOCKS,
        limits.MAX_AXIS,
    ]
    assert limits.MAX_PLACES == limits.MAX_ROLES == limits.MAX_TERMS
    assert limits.MAX_BLOCK_TOKENS == limits.MAX_AXIS
    assert "| bytes of a pool | 2^50 - 1," in DOCUMENT
    assert limits.MAX_INTEGER // 8 == 2**50 - 1
