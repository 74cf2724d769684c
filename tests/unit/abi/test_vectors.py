"""What is said of an implementation that differs from a vector: here the vectors are bent."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transload_abi import vectors
from transload_abi.errors import VectorFailed

VECTORS = Path(__file__).parents[2] / "vectors" / "abi"
DECODE = "decode/vllm-lbnhc-bf16"
CONVERT = "convert/lbhnc-to-lbnhc"
REFUSED = "convert/refused-window-to-full"

Bend = Callable[[Path], None]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in (DECODE, CONVERT, REFUSED):
        shutil.copytree(VECTORS / name, tmp_path / name)
    return tmp_path


def flip(file: str, byte: int) -> Bend:
    """Turns one byte of a file into its complement."""

    def bend(folder: Path) -> None:
        data = bytearray((folder / file).read_bytes())
        data[byte] ^= 0xFF
        (folder / file).write_bytes(data)

    return bend


def say(change: Callable[[dict[str, Any]], object]) -> Bend:
    """Changes what `case.json` says."""

    def bend(folder: Path) -> None:
        case = json.loads((folder / "case.json").read_bytes())
        change(case)
        (folder / "case.json").write_text(json.dumps(case))

    return bend


def spread(folder: Path) -> None:
    """Puts white space into the descriptor."""
    path = folder / "descriptor.json"
    path.write_bytes(path.read_bytes().replace(b",", b", ", 1))


def failure(root: Path, name: str) -> str:
    (bent,) = [each for each in vectors.check_directory(root) if not each.is_passed]
    assert bent.name == name
    (sentence,) = bent.failures
    return sentence


def test_vectors_as_they_are_hold(copied: Path) -> None:
    assert vectors.check_directory(copied) == [
        vectors.Result(DECODE),
        vectors.Result(CONVERT),
        vectors.Result(REFUSED),
    ]


@pytest.mark.parametrize(
    ("name", "bend", "sentence"),
    [
        (
            DECODE,
            flip("values/attention.v.bin", 4 * 13 + 1),
            "values/attention.v.bin: at [0, 0, 0, 1, 5] expected ",
        ),
        (
            DECODE,
            flip("pools/kv.bin", 0),
            "pools/kv.bin: at [0] expected 0x5a, got 0xa5; 1 of 4096",
        ),
        (DECODE, spread, "descriptor.json: expected the shape (756,), got (755,)"),
        (
            DECODE,
            say(lambda case: case["fingerprints"].update(page="0")),
            "fingerprints: expected {'page': '0', 'meaning': '",
        ),
        (
            DECODE,
            say(lambda case: case["group_fingerprints"]["attention"].update(meaning="0")),
            "fingerprints of group attention: expected {'page': '",
        ),
        (
            DECODE,
            say(lambda case: case["groups"]["attention"].update(blocks=[9, 1])),
            "PlanError: block 9: pool kv has 4",
        ),
        (
            DECODE,
            say(lambda case: case["groups"]["attention"]["roles"]["k"].update(shape=[1])),
            "VectorFailed: attention.k.bin: expected 1 elements, got 512",
        ),
        (
            DECODE,
            lambda folder: (folder / "values" / "attention.k.bin").unlink(),
            "the vector itself cannot be read: FileNotFoundError(",
        ),
        (DECODE, say(lambda case: case.pop("groups")), "the vector itself cannot be read: KeyErr"),
        (CONVERT, flip("dst/kv.bin", 400), "dst/kv.bin: at [400] expected 0x"),
        (
            CONVERT,
            say(lambda case: case["sources"][0].update(verdict="lossy")),
            "verdict on src-0: expected lossy, got lossless",
        ),
        (
            CONVERT,
            say(lambda case: case["dst_blocks"].update({"0": [77, 1]})),
            "PlanError: blocks.dst[0][0]: block 77: the pool has 6",
        ),
        (
            REFUSED,
            say(lambda case: case.update(path="groups[0].window")),
            "path of the first difference: expected groups[0].window, got groups[0].kind",
        ),
    ],
)
def test_what_differs_is_named(copied: Path, name: str, bend: Bend, sentence: str) -> None:
    bend(copied / name)
    assert failure(copied, name).startswith(sentence)


def test_other_elements_are_named_with_the_pool_that_they_would_make(copied: Path) -> None:
    flip("elements/attention.k.bin", 2 * 13)(copied / DECODE)
    (bent,) = [each for each in vectors.check_directory(copied) if not each.is_passed]
    assert [sentence.split(" expected ")[0] for sentence in bent.failures] == [
        "elements/attention.k.bin: at [0, 0, 0, 1, 5]",
        "pools/kv.bin: at [1610]",  # block 3 of 512 bytes, token 1 of 64, element 5 of 2
    ]


def test_a_zero_of_the_other_sign_differs(copied: Path) -> None:
    # The first two elements of each role are the zeros.
    flip_sign = copied / DECODE / "values" / "attention.k.bin"
    data = bytearray(flip_sign.read_bytes())
    data[3] ^= 0x80
    flip_sign.write_bytes(data)
    assert failure(copied, DECODE).startswith(
        "values/attention.k.bin: at [0, 0, 0, 0, 0] expected -0.0, got 0.0; 1 of 512 differ"
    )


def test_any_nan_is_as_good(copied: Path) -> None:
    path = copied / DECODE / "values" / "attention.k.bin"
    data = bytearray(path.read_bytes())
    data[4 * 4 : 4 * 4 + 4] = bytes.fromhex("010080ff")
    path.write_bytes(data)
    assert all(each.is_passed for each in vectors.check_directory(copied))


def test_a_folder_without_vectors_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VectorFailed, match="expected vectors in decode/ or convert/ of"):
        vectors.check_directory(tmp_path)
