"""What is said of an implementation that differs from a vector: here the vectors are bent."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transload_abi import plan, proof, vectors
from transload_abi.errors import ProofFailed, VectorFailed

VECTORS = Path(__file__).parents[2] / "vectors" / "abi"
DECODE = "decode/vllm-lbnhc-bf16"
CONVERT = "convert/lbhnc-to-lbnhc"
LOSSY = "convert/f32-to-bf16"
REFUSED = "convert/refused-window-to-full"
ERROR = "convert/error-null-block"
MISSING = "convert/error-heads-that-no-source-has"

Bend = Callable[[Path], None]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in (DECODE, CONVERT, LOSSY, REFUSED, ERROR, MISSING):
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
        vectors.Result(MISSING),
        vectors.Result(ERROR),
        vectors.Result(LOSSY),
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
            "group fingerprints: expected {'attention': {'page': '",
        ),
        (
            DECODE,
            say(lambda case: case["groups"]["attention"]["roles"]["k"].update(shape=[1])),
            "VectorFailed: elements/attention.k.bin: expected 1 elements, got 1024 bytes",
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
            "moving: got a refusal (plan: blocks.dst[0][0]: block 77: the pool has 6)",
        ),
        (
            REFUSED,
            say(lambda case: case.update(path="groups[0].window")),
            "path of the first difference: expected groups[0].window, got groups[0].kind",
        ),
        (
            ERROR,
            say(lambda case: case["sources"][0].update(blocks={"0": [5, 2]})),
            "moving: expected a refusal (plan), got none",
        ),
        (
            MISSING,
            say(lambda case: case.update(error="plan")),
            "moving: expected a refusal (plan), got a refusal (missing: groups[0]: attention: no ",
        ),
    ],
)
def test_what_differs_is_named(copied: Path, name: str, bend: Bend, sentence: str) -> None:
    bend(copied / name)
    assert failure(copied, name).startswith(sentence)


def test_a_refusal_of_what_is_right_is_named(copied: Path) -> None:
    say(lambda case: case["groups"]["attention"].update(blocks=[9, 1]))(copied / DECODE)
    (bent,) = [each for each in vectors.check_directory(copied) if not each.is_passed]
    assert bent.failures == (
        "attention.k: got a refusal (plan: block 9: pool kv has 4)",
        "attention.v: got a refusal (plan: block 9: pool kv has 4)",
        "writing the elements: got a refusal (plan: block 9: pool kv has 4)",
    )


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


def test_what_has_no_values_has_no_file_of_them(tmp_path: Path) -> None:
    name = "decode/qsa-ring"
    shutil.copytree(VECTORS / name, tmp_path / name)
    case = json.loads((tmp_path / name / "case.json").read_bytes())
    (group,) = case["groups"].values()
    assert [role for role, files in group["roles"].items() if "values" not in files] == ["position"]
    assert vectors.check_directory(tmp_path) == [vectors.Result(name)]
    flip("elements/attention.position.bin", 8)(tmp_path / name)
    (bent,) = vectors.check_directory(tmp_path)
    assert bent.failures[0].startswith("elements/attention.position.bin: at [0, 0, 0, 1] expected")


def test_a_folder_without_vectors_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VectorFailed, match=r"expected vectors in .*, found none"):
        vectors.check_directory(tmp_path)


# --- accepted and refused


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """One document of either sort, with indexes of one entry."""
    for kind, files in (("accepted", ["bare.msgpack"]), ("refused", ["align-three.json"])):
        (tmp_path / kind).mkdir()
        index = json.loads((VECTORS / kind / "index.json").read_bytes())
        kept = [entry for entry in index if entry["file"] in files]
        (tmp_path / kind / "index.json").write_text(json.dumps(kept))
        for file in files:
            shutil.copy(VECTORS / kind / file, tmp_path / kind)
    shutil.copytree(VECTORS / "decode" / "bare", tmp_path / "decode" / "bare")
    return tmp_path


def change_entry(root: Path, kind: str, **fields: object) -> None:
    path = root / kind / "index.json"
    (entry,) = json.loads(path.read_bytes())
    path.write_text(json.dumps([entry | fields]))


def test_documents_of_the_indexes_are_read(documents: Path) -> None:
    assert vectors.check_directory(documents) == [
        vectors.Result("decode/bare"),
        vectors.Result("accepted/bare.msgpack"),
        vectors.Result("refused/align-three.json"),
    ]


def test_another_canonical_form_is_named(documents: Path) -> None:
    other = documents / "accepted" / "other.json"
    other.write_bytes((documents / "decode" / "bare" / "descriptor.json").read_bytes() + b" ")
    change_entry(documents, "accepted", canonical="accepted/other.json")
    sentence = failure(documents, "accepted/bare.msgpack")
    assert sentence.startswith("accepted/other.json from it: expected the shape (")


def test_other_fingerprints_are_named(documents: Path) -> None:
    change_entry(documents, "accepted", fingerprints={"page": "0"})
    sentence = failure(documents, "accepted/bare.msgpack")
    assert sentence.startswith("fingerprints: expected {'page': '0'}, got {'page': '")


def test_a_spelling_that_a_writer_would_not_choose_is_named(documents: Path) -> None:
    file = "defaults-spelled-out.msgpack"
    shutil.copy(VECTORS / "accepted" / file, documents / "accepted")
    change_entry(documents, "accepted", file=file)
    sentence = failure(documents, f"accepted/{file}")
    assert sentence.startswith("the document written again: expected the shape (")
    change_entry(documents, "accepted", is_canonical=False)
    assert all(each.is_passed for each in vectors.check_directory(documents))


def test_a_document_that_is_not_refused_is_named(documents: Path) -> None:
    shutil.copy(VECTORS / "accepted" / "plain.json", documents / "refused" / "align-three.json")
    sentence = failure(documents, "refused/align-three.json")
    assert sentence == "expected a refusal (Contradiction), got a descriptor"


def test_a_document_that_is_not_there_is_named(documents: Path) -> None:
    (documents / "refused" / "align-three.json").unlink()
    sentence = failure(documents, "refused/align-three.json")
    assert sentence.startswith("the vector itself cannot be read: FileNotFoundError(")


def test_an_entry_without_a_file_is_named(documents: Path) -> None:
    (documents / "refused" / "index.json").write_text("[{}]")
    assert failure(documents, "refused/?") == "the vector itself cannot be read: KeyError('file')"


@pytest.mark.parametrize("text", ["{}", "[1]"])
def test_an_index_of_something_else_is_an_error(documents: Path, text: str) -> None:
    (documents / "refused" / "index.json").write_text(text)
    with pytest.raises(VectorFailed, match=r"refused/index\.json: expected a list of objects"):
        vectors.check_directory(documents)


def test_documents_without_an_index_are_an_error(documents: Path) -> None:
    (documents / "accepted" / "index.json").unlink()
    with pytest.raises(VectorFailed, match=r"accepted/index\.json: cannot be read"):
        vectors.check_directory(documents)


def test_losses_that_nobody_allowed_are_named(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_cover = plan.Cover.compile

    def careless(*given: Any, **_: object) -> object:
        return compile_cover(*given, allow_lossy=True)

    monkeypatch.setattr(plan.Cover, "compile", careless)
    (bent,) = [each for each in vectors.check_directory(copied) if not each.is_passed]
    assert bent.name == LOSSY
    refusal, bytes_ = bent.failures
    assert refusal == "losses: expected a refusal (lossy), got none"
    assert bytes_.startswith("dst after a refusal (lossy)/kv.bin: at [")


def test_a_plan_that_cannot_be_proven_is_named(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubt(*_: object) -> None:
        raise ProofFailed("a bit is written twice")

    monkeypatch.setattr(proof, "prove", doubt)
    failed = [each for each in vectors.check_directory(copied) if not each.is_passed]
    assert [each.name for each in failed] == [LOSSY, CONVERT]
    assert failed[0].failures == ("moving: got a refusal (invalid: a bit is written twice)",)
