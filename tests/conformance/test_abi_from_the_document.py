"""What was written from the ABI's document alone agrees with the document and with the vectors."""

import ast
import json
import math
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.abi_from_the_document import read
from conformance.abi_from_the_document_bytes import meet, touch
from conformance.abi_from_the_document_moves import PlanError, Request, Side, move
from conformance.abi_from_the_document_numbers import (
    LARGEST_F32,
    decode,
    encode,
    inline_scale,
    with_zero_point,
)
from conformance.abi_from_the_document_spelling import RefusedError, parse_twin, write_twin
from conformance.abi_from_the_document_values import (
    Cache,
    canonical,
    fingerprints,
    text_of,
)
from conformance.abi_from_the_document_vectors import check, load, run, vectors

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
VECTORS = ROOT / "tests" / "vectors"
ABI = VECTORS / "abi"
DOCUMENT = ROOT / "connector" / "ABI.md"
MODULES = sorted(HERE.glob("abi_from_the_document*.py"))
NAMES = vectors(ABI)
NUMBERS = json.loads((VECTORS / "numbers.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_vector(name: str) -> None:
    assert check(ABI, name) == []


def test_no_vector_is_left_out() -> None:
    for kind in ("accepted", "refused"):
        index = json.loads((ABI / kind / "index.json").read_text())
        assert {f"{kind}/{entry['file']}" for entry in index} <= set(NAMES)
    for kind in ("decode", "convert"):
        assert {f"{kind}/{p.name}" for p in (ABI / kind).iterdir()} <= set(NAMES)


@pytest.mark.parametrize(
    ("kind", "name", "file", "byte"),
    [
        ("decode", "mla-656", "pools/kv.bin", 3000),
        ("decode", "mla-656", "values/attention.latent.bin", 3000),
        ("decode", "nvfp4-msa", "elements/attention.k.bin", 3000),
        ("decode", "opaque-page", "pools/kv.bin", 1100),
        ("convert", "f32-to-bf16", "src-0/kv.bin", 2 * 1024 + 3),
        ("convert", "full-to-window", "dst/kv.bin", 0),
    ],
)
def test_a_changed_vector_fails(tmp_path: Path, kind: str, name: str, file: str, byte: int) -> None:
    copy = tmp_path / kind / name
    shutil.copytree(ABI / kind / name, copy)
    assert run(tmp_path) == []
    data = bytearray((copy / file).read_bytes())
    data[byte] ^= 0x40
    (copy / file).write_bytes(data)
    assert run(tmp_path)


def test_an_accepted_document_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "refused").mkdir()
    shutil.copy(ABI / "accepted" / "plain.json", tmp_path / "refused" / "plain.json")
    assert run(tmp_path) == ["refused/plain.json: is not refused"]


@pytest.mark.parametrize(
    ("source", "target", "request_", "holds"),
    [
        ([5, 2], [1, 3], Request(16), True),
        ([5, 2], [1, 3], Request(16, 8), True),
        ([5, 2], [3], Request(16, 8), True),
        ([2], [3], Request(16, 8), True),
        ([2], [], Request(16, 16), True),
        ([5, 2], [0, 3], Request(16), True),
        ([2], [0, 3], Request(16), True),
        ([5, 2], [3], Request(16), False),
        ([5, 2, 1], [1, 3], Request(16), False),
        ([5, 2], [1, 3, 4], Request(16), False),
        ([5, 2], [1, 3], Request(16, 24), False),
        ([5, 5], [1, 3], Request(16), True),
        ([5, 2], [1, 6], Request(16), False),
    ],
)
def test_lists_that_fit(
    source: list[int], target: list[int], request_: Request, holds: bool
) -> None:
    folder = ABI / "convert" / "lbhnc-to-lbnhc"
    old = Side(load(folder / "src-0.json", folder / "src-0"), {0: source})
    new = Side(load(folder / "dst.json"), {0: target})
    before = bytes(new.cache.pools["kv"])
    if holds:
        move([old], new, request_)
    else:
        with pytest.raises(PlanError):
            move([old], new, request_)
        assert new.cache.pools["kv"] == before


def example() -> dict[str, Any]:
    text = DOCUMENT.read_text().split("## 11.")[1]
    block = re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0]
    return read(block.encode())


def test_the_example() -> None:
    section = DOCUMENT.read_text().split("## 11.")[1]
    block = re.findall(r"```json\n(.*?)```", section, re.DOTALL)[0]
    d = canonical(example())
    assert text_of(d) == block.replace("\n", "")
    for name, digest in re.findall(r"^(page|meaning|placement) +([0-9a-f]{64})$", section, re.M):
        assert fingerprints(d)[name] == digest
    twin = write_twin(json.loads(text_of(d)))
    assert len(twin) == 381
    assert twin.startswith(bytes.fromhex("84a3616269a76b766162692f31a667"))
    assert read(twin, twin=True) == example()


@pytest.mark.parametrize(
    ("window", "target", "holds"), [(1, [1, 0], True), (1, [0, 1], False), (3, [1, 0], False)]
)
def test_a_null_entry_is_seen_by_the_piece(window: int, target: list[int], holds: bool) -> None:
    sides = []
    for num_tokens, blocks in ((4, [0]), (2, target)):
        tree = json.loads(text_of(example()))
        group = tree["groups"][0]
        group |= {"kind": "sliding_window", "window": window, "tokens_per_block": num_tokens}
        group["places"] = [{"block_stride": 64, "pools": ["kv"]}]
        for role in group["roles"]:
            role |= {"base_bits": 256 * (role["role"] == "v"), "shape": {"D": 4, "H": 1}}
            role["shape"]["N"] = num_tokens
            role["terms"] = [["N", 1, num_tokens, 64], ["D", 1, 4, 16]]
        tree["pools"][0]["num_bytes"] = 128
        d = canonical(read(json.dumps(tree).encode()))
        sides.append(Side(Cache(d, {"kv": bytearray(128)}), {0: blocks}))
    if holds:
        move([sides[0]], sides[1], Request(4))
    else:
        with pytest.raises(PlanError):
            move([sides[0]], sides[1], Request(4))


def test_the_values_of_the_example() -> None:
    section = DOCUMENT.read_text().split("## 11.")[1]
    rows = re.findall(r"^((?:[0-9a-f]{2} ){15}[0-9a-f]{2})$", section, re.M)
    pool = bytearray(32) + bytearray.fromhex("".join(rows))
    d = canonical(example())
    cache = Cache(d, {"kv": pool})
    got = {
        role: [
            [cache.value(role, d["groups"][0], 0, 1, {"H": 0, "N": n, "D": i}) for i in range(4)]
            for n in range(2)
        ]
        for role in "kv"
    }
    assert got["k"] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert got["v"] == [[-1, -2, -3, -4], [0.5, 0.25, 0.125, 0]]


@pytest.mark.parametrize(
    ("number", "spelled"),
    [
        (-1, "ff"),
        (-32, "e0"),
        (-33, "d0df"),
        (-128, "d080"),
        (-129, "d1ff7f"),
        (-(2**15) - 1, "d2ffff7fff"),
        (-(2**31) - 1, "d3ffffffff7fffffff"),
        (200, "ccc8"),
        (2**53 - 1, "cf001fffffffffffff"),
    ],
)
def test_integers_of_a_twin(number: int, spelled: str) -> None:
    assert write_twin(number).hex() == spelled
    assert parse_twin(bytes.fromhex(spelled)) == number


@pytest.mark.parametrize("spelled", ["d0e0", "d00a", "d1ff80", "d2ffff8000", "d100c8"])
def test_integers_in_a_longer_form(spelled: str) -> None:
    with pytest.raises(RefusedError):
        parse_twin(bytes.fromhex(spelled))


def test_what_no_file_says_of_numbers_and_texts() -> None:
    tree = json.loads(text_of(example()))
    tree["model"]["rope"] = {"state": "applied", "params": {"shift": -3, "of": ["a", -(2**53) + 1]}}
    tree["x_note"] = {"of": [None, True, -5, {"deep": "er"}]}
    assert read(json.dumps(tree).encode()) == read(write_twin(tree), twin=True)
    for wrong in ({"\u00e4": 1}, "\u0085", -(2**53), {"a": "b" * 513}):
        tree["x_note"] = wrong
        with pytest.raises(RefusedError):
            read(json.dumps(tree).encode())


@pytest.mark.parametrize(
    ("dtype", "value", "element"),
    [
        ("i8", math.nan, 0),
        ("i8", -math.inf, 0x80),
        ("i8", 2.5, 2),
        ("e4m3", math.inf, 0x7E),
        ("e5m2", -math.inf, 0xFB),
        ("e4m3fnuz", 1e9, 0x7F),
        ("e4m3fnuz", -1e-9, 0),
        ("f16", 65520.0, 0x7C00),
        ("e2m1", 5.0, 6),
        ("e2m1", -math.inf, 0xF),
        ("e2m1", math.nan, 0),
    ],
)
def test_what_is_beyond_a_type(dtype: str, value: float, element: int) -> None:
    assert encode(dtype, value) == element


def test_inline_scales() -> None:
    assert inline_scale("f32", "i8", [1.0, -254.0, math.nan]) == 2.0
    assert inline_scale("f32", "e4m3", [0.0, math.nan]) == 1.0
    assert inline_scale("f32", "e4m3", [2.0**-149]) == 1.0
    assert inline_scale("f32", "e4m3fnuz", [math.inf]) == inline_scale(
        "f32", "e4m3fnuz", [LARGEST_F32]
    )


@pytest.mark.parametrize(
    ("dtype", "peak", "param", "scale"),
    [
        ("ue8m0", 6.0, 1.0, 1.0),
        ("ue8m0", 6.0, 2.0, 0.5),
        ("ue8m0", 6.0000005, 1.0, 2.0),
        ("ue8m0", 2.0**-140, 1.0, 2.0**-127),
        ("ue8m0", math.inf, 1.0, 2.0**126),
        ("ue8m0", 0.0, 1.0, 1.0),
        ("e4m3", 6.0 * 1.0625, 1.0, 1.0),
        ("e4m3", 2.0**-40, 1.0, 2.0**-9),
        ("e4m3", 2.0**40, 1.0, 448.0),
        ("e4m3", math.nan, 1.0, 1.0),
    ],
)
def test_inline_scales_of_few_bits(dtype: str, peak: float, param: float, scale: float) -> None:
    assert inline_scale(dtype, "e2m1", [0.0, -peak], param) == scale


@pytest.mark.parametrize(
    ("values", "zero", "scale", "elements"),
    [
        ([-1.0, 14.0, math.nan, 0.5], 1, 1.0, [0, 15, 1, 2]),
        ([3.0, 3.0], 0, 1.0, [3, 3]),
        ([-20.0, -20.0], 15, 1.0, [0, 0]),
        ([0.0, 30.0], 0, 2.0, [0, 15]),
    ],
)
def test_scales_with_a_zero_point(
    values: list[float], zero: int, scale: float, elements: list[int]
) -> None:
    pattern, got = with_zero_point(values)
    assert (pattern & 15, decode("f32", pattern & ~15), got) == (zero, scale, elements)


def test_halves_of_a_byte_are_apart_in_a_table_alone() -> None:
    low, high = (0, 4, ((24, 2), (8, 2))), (4, 4, ((24, 2), (8, 2)))
    assert not meet([low, high])
    assert touch(low, high)
    assert not touch(low, (20, 4, ((24, 2),)))
    assert touch((0, 4, ((12, 4),)), (32, 8, ()))
    assert not touch((0, 4, ((12, 4),)), (16, 8, ()))


@pytest.mark.parametrize("field", ["window", "table", "tokens_per_block"])
def test_a_refusal_names_the_field(field: str) -> None:
    tree = json.loads(text_of(example()))
    tree["groups"][0][field] = "two"
    with pytest.raises(RefusedError) as caught:
        read(json.dumps(tree).encode())
    assert caught.value.path == f"groups[0].{field}"


@pytest.mark.parametrize("dtype", NUMBERS["decode"])
def test_numbers_are_decoded(dtype: str) -> None:
    step = NUMBERS["step"].get(dtype, 1)
    for i, told in enumerate(NUMBERS["decode"][dtype]):
        value = decode(dtype, i * step)
        assert math.isnan(value) if told == "nan" else struct.pack(">f", value).hex() == told
        if math.isfinite(value):
            assert encode(dtype, value) == i * step


@pytest.mark.parametrize("dtype", NUMBERS["encode"])
def test_numbers_are_rounded(dtype: str) -> None:
    for bits, element in NUMBERS["encode"][dtype]:
        assert encode(dtype, struct.unpack(">f", bytes.fromhex(bits))[0]) == element


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_only_the_document_was_used(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            own = name.startswith("conformance.abi_from_the_document")
            assert own or name.split(".")[0] in sys.stdlib_module_names


def test_nothing_of_the_project_is_loaded() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import conformance.abi_from_the_document_vectors\n"
        "print([name for name in sys.modules if name.startswith('transload')])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(HERE.parent)], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"
