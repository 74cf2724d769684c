"""Implementations of the ABI that are wrong about one thing, and the vectors that notice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.harnesses import Bend, Bent, does_all, says, take_abi_vectors
from transload_abi import vectors
from transload_abi.harness.protocol import Answer, Declined, Done, Fields

DECODE = "decode/bare"
OPAQUE = "decode/qsa-ring"
MOVED = "convert/lbhnc-to-lbnhc"
LOSSY = "convert/f32-to-bf16"
REFUSED = "convert/refused-window-to-full"
ERROR = "convert/error-null-block"
TEXT, TWIN, FREE = "accepted/producer.json", "accepted/plain.msgpack", "accepted/plain.json"
BAD = "refused/align-three.json"
ALL = (DECODE, OPAQUE, MOVED, LOSSY, REFUSED, ERROR, TEXT, TWIN, FREE, BAD)
READ = (DECODE, OPAQUE, TEXT, TWIN, FREE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors")
    take_abi_vectors(path, ALL)
    return path


def failures(folder: Path, operation: str, bend: Bend) -> dict[str, tuple[str, ...]]:
    results = vectors.check_directory(folder, Bent(vectors.OURS, operation, bend))
    assert len(results) == len(ALL)
    return {result.name: result.failures for result in results if result.failures}


def lacks(answer: Answer, _asked: Fields) -> Answer:
    return Done({}) if isinstance(answer, Done) else answer


def declines(answer: Answer, _asked: Fields) -> Answer:
    return Declined("plan", "here", "no") if isinstance(answer, Done) else answer


def file(name: str, change: Callable[[Path], object]) -> Bend:
    """Does something to a file that was made."""

    def bend(answer: Answer, asked: Fields) -> Answer:
        if Path(asked[name]).exists():
            change(Path(asked[name]))
        return answer

    return bend


def flip(path: Path) -> None:
    """The lowest bit of an exponent, or of anything else, in the last element."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def flip_pool(path: Path) -> None:
    flip(next(path.glob("*.bin")))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("bend", "noticed", "sentence"),
    [
        (says(canonical=lambda text: text + " "), READ, "descriptor.json: expected the shape ("),
        (lacks, READ, "descriptor.json: expected the shape ("),
        (says(fingerprints={}), READ, "fingerprints: expected {'page': '"),
        (says(group_fingerprints={}), (DECODE, OPAQUE), "group fingerprints: expected {'"),
        (says(twin="zz"), (DECODE, OPAQUE, TWIN), "descriptor.json by way of MessagePack: got a"),
        (declines, READ, "descriptor.json: got a refusal (plan: here: no)"),
        (does_all, (BAD,), "expected a refusal (Contradiction), got a descriptor"),
    ],
)
def test_reading(folder: Path, bend: Bend, noticed: tuple[str, ...], sentence: str) -> None:
    found = failures(folder, "read", bend)
    assert found.keys() == set(noticed)
    assert found[noticed[0]][0].startswith(sentence)


def test_refusing_what_others_accept_is_told(folder: Path) -> None:
    found = failures(folder, "read", declines)
    assert found[TEXT] == ("expected a descriptor, got a refusal (plan: here: no)",)


@pytest.mark.parametrize(
    ("bend", "noticed", "sentence"),
    [
        (says(shape=[1]), (DECODE, OPAQUE), "shape of attention.k: expected [1, 2, 1, 8, 8], got"),
        (lacks, (DECODE, OPAQUE), "shape of attention.k: expected [1, 2, 1, 8, 8], got None"),
        (file("elements", flip), (DECODE, OPAQUE), "elements/attention.k.bin: at [0, 1, 0, 7, 7] "),
        (file("elements", shorten), (DECODE, OPAQUE), "elements/attention.k.bin: expected "),
        (file("elements", Path.unlink), (DECODE, OPAQUE), "elements/attention.k.bin: no file was "),
        (file("values", flip), (DECODE, OPAQUE), "values/attention.k.bin: at [0, 1, 0, 7, 7] "),
        (file("values", shorten), (DECODE, OPAQUE), "values/attention.k.bin: expected "),
        (
            file("values", Path.unlink),
            (DECODE, OPAQUE),
            "values of attention.k: expected values, got none",
        ),
        (declines, (DECODE, OPAQUE), "attention.k: got a refusal (plan: here: no)"),
    ],
)
def test_decoding(folder: Path, bend: Bend, noticed: tuple[str, ...], sentence: str) -> None:
    found = failures(folder, "decode", bend)
    assert found.keys() == set(noticed)
    assert found[noticed[0]][0].startswith(sentence)


def test_values_of_what_has_none(folder: Path) -> None:
    def bend(answer: Answer, asked: Fields) -> Answer:
        Path(asked["values"]).touch()
        return answer

    found = failures(folder, "decode", bend)
    assert found == {OPAQUE: ("values of attention.position: expected no values, got some",)}


@pytest.mark.parametrize(
    ("bend", "sentence"),
    [
        (file("pools", flip_pool), "pools/kv.bin: at [1023] expected "),
        (
            file("pools", lambda path: next(path.glob("*.bin")).unlink()),
            "pools/kv.bin: the file is",
        ),
        (declines, "writing the elements: got a refusal (plan: here: no)"),
    ],
)
def test_encoding(folder: Path, bend: Bend, sentence: str) -> None:
    found = failures(folder, "encode", bend)
    assert found.keys() == {DECODE, OPAQUE}
    assert found[DECODE][0].startswith(sentence)


@pytest.mark.parametrize(
    ("bend", "noticed", "sentence"),
    [
        (
            says(verdict="identical"),
            (MOVED, LOSSY, REFUSED, ERROR),
            "verdict on src-0: expected lo",
        ),
        (says(path="model"), (REFUSED,), "path of the first difference: expected groups[0].kind, "),
        (declines, (MOVED, LOSSY, REFUSED, ERROR), "verdict on src-0: got a refusal (plan: here: "),
    ],
)
def test_comparing(folder: Path, bend: Bend, noticed: tuple[str, ...], sentence: str) -> None:
    found = failures(folder, "compare", bend)
    assert found.keys() == set(noticed)
    assert found[noticed[0]][0].startswith(sentence)


def in_dst(change: Callable[[Path], object]) -> Bend:
    def bend(answer: Answer, asked: Fields) -> Answer:
        change(Path(asked["dst"]["pools"]))
        return answer

    return bend


def other_code(answer: Answer, _asked: Fields) -> Answer:
    return answer._replace(code="missing") if isinstance(answer, Declined) else answer


@pytest.mark.parametrize(
    ("bend", "noticed", "sentence"),
    [
        (in_dst(flip_pool), (MOVED, LOSSY, ERROR), "dst/kv.bin: at ["),
        (declines, (MOVED, LOSSY), "moving: got a refusal (plan: here: no)"),
        (does_all, (ERROR, LOSSY), "moving: expected a refusal (plan), got none"),
        (other_code, (ERROR, LOSSY), "moving: expected a refusal (plan), got a refusal (missing: "),
    ],
)
def test_moving(folder: Path, bend: Bend, noticed: tuple[str, ...], sentence: str) -> None:
    found = failures(folder, "move", bend)
    assert found.keys() == set(noticed)
    assert found[noticed[0]][0].startswith(sentence)


def test_a_mover_that_refuses_and_writes(folder: Path) -> None:
    found = failures(folder, "move", in_dst(flip_pool))
    assert found[ERROR][0].startswith("dst after a refusal (plan)/kv.bin: at [")
    assert found[LOSSY][0].startswith("dst after a refusal (lossy)/kv.bin: at [")


def test_losses_that_nobody_allowed(folder: Path) -> None:
    found = failures(folder, "move", does_all)
    assert found[LOSSY] == ("losses: expected a refusal (lossy), got none",)


def test_paths_are_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    given: list[str] = []

    def note(answer: Answer, asked: Fields) -> Answer:
        given.extend(str(asked[name]) for name in ("descriptor", "pools", "elements", "values"))
        return answer

    results = vectors.check_directory(Path(), Bent(vectors.OURS, "decode", note))
    assert all(result.is_passed for result in results)
    assert given
    assert all(Path(each).is_absolute() for each in given)
