"""Puts the vectors of `tests/vectors/README.md` to an implementation, and names what differs.

What is due comes from the vectors' files alone; the implementation is asked as `HARNESS.md` says.
What differs is reported, not raised, so that one run names everything.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from transload_abi.errors import VectorFailed
from transload_abi.harness.protocol import Declined, Done, Fields, Implementation, asked
from transload_abi.harness.report import Result, Vectors, run, unequal
from transload_abi.vectors.files import (
    UNWRITTEN,
    array,
    array_differences,
    differences,
    read_pools,
    value_differences,
    write_blank,
)
from transload_abi.vectors.ours import OURS

Case = dict[str, Any]
"""A vector's `case.json`, or its entry of an index."""

_VALUE_BYTES: Final = 4


def check_directory(path: Path, by: Implementation = OURS) -> list[Result]:
    """The results of all vectors of a folder; with the errors of `vectors_in`."""
    return list(run(vectors_in(path, by)))


def vectors_in(path: Path, by: Implementation = OURS) -> Vectors:
    """All vectors of a folder, to be run.

    Those below `decode/` and `convert/` come in the order of their names, those that the indexes of
    `accepted/` and `refused/` list in theirs.

    Raises:
        VectorFailed: There is not a single vector in the folder, or an index cannot be read.
    """
    path = path.absolute()
    folders: list[tuple[str, Callable[..., Iterator[str]]]]
    folders = [("decode", check_decode), ("convert", check_convert)]
    indexed: list[tuple[str, Callable[..., Iterator[str]]]]
    indexed = [("accepted", check_accepted), ("refused", check_refused)]
    found: Vectors = [
        (f"{kind}/{folder.name}", check(folder, by))
        for kind, check in folders
        for folder in sorted((path / kind).glob("*/"))
    ]
    for kind, check_entry in indexed:
        if (path / kind).is_dir():
            found += [
                (f"{kind}/{entry.get('file', '?')}", check_entry(path / kind, entry, by))
                for entry in _read_index(path / kind)
            ]
    if not found:
        raise VectorFailed(f"expected vectors in {path}, found none")
    return found


def check_accepted(folder: Path, entry: Case, by: Implementation = OURS) -> Iterator[str]:
    """Differences between how a document is read and what the index says."""
    file = folder / entry["file"]
    raw = file.read_bytes()
    canonical = (folder.parent / entry["canonical"]).read_bytes()
    answer = _read(by, file)
    if isinstance(answer, Declined):
        yield f"expected a descriptor, got {answer}"
        return
    yield from _canonical_differences(f"{entry['canonical']} from it", answer, canonical)
    yield from unequal("fingerprints", answer.fields.get("fingerprints"), entry["fingerprints"])
    if entry["is_canonical"]:
        what = "the document written again"
        if file.suffix == ".msgpack":
            yield from differences(what, _twin(answer), raw)
        else:
            yield from _canonical_differences(what, answer, raw)


def check_refused(folder: Path, entry: Case, by: Implementation = OURS) -> Iterator[str]:
    """A sentence where a document is read that nobody may."""
    file = folder / entry["file"]
    if not file.is_file():
        raise FileNotFoundError(str(file))
    if isinstance(_read(by, file), Done):
        yield f"expected a refusal ({entry['error']}), got a descriptor"


def check_decode(folder: Path, by: Implementation = OURS) -> Iterator[str]:
    """Differences between what is read from pages and written to them, and what the vector says."""
    case = _read_case(folder)
    pools = read_pools(folder / "pools")
    parts = list(_parts(folder, case))
    with _scratch() as scratch:
        yield from _descriptor_differences(folder, case, by, scratch)
        for part in parts:
            yield from _decode_differences(folder, part, by, scratch)
        sizes = {pool: len(data) for pool, data in pools.items()}
        rewritten = write_blank(scratch / "pools", sizes)
        answer = asked(
            by,
            "encode",
            descriptor=str(folder / "descriptor.json"),
            pools=rewritten,
            parts=[_encode_part(folder, part) for part in parts],
        )
        if isinstance(answer, Declined):
            yield f"writing the elements: got {answer}"
            return
        yield from _pool_differences("pools", Path(rewritten), pools)


def check_convert(folder: Path, by: Implementation = OURS) -> Iterator[str]:
    """Differences between what is moved and what the vector says."""
    case = _read_case(folder)
    is_refused, is_wrong = case["verdict"] == "refused", False
    for source in case["sources"]:
        for sentence in _verdict_differences(folder, case, source, by):
            is_wrong = True
            yield sentence
    if is_refused or is_wrong:
        return
    with _scratch() as scratch:
        if case["verdict"] == "lossy" and "error" not in case:
            yield from _unrefused("lossy", "losses", folder, case, by, scratch / "strict")
        if "error" in case:
            yield from _unrefused(case["error"], "moving", folder, case, by, scratch / "moved")
            return
        due = read_pools(folder / "dst")
        request = _move_request(folder, case, scratch / "moved")
        answer = asked(by, "move", **request, allow_lossy=case["verdict"] == "lossy")
        if isinstance(answer, Declined):
            yield f"moving: got {answer}"
            return
        yield from _pool_differences("dst", Path(request["dst"]["pools"]), due)


# --- documents


def _read(by: Implementation, file: Path) -> Done | Declined:
    encoding = "msgpack" if file.suffix == ".msgpack" else "json"
    return asked(by, "read", file=str(file), encoding=encoding)


def _descriptor_differences(
    folder: Path, case: Case, by: Implementation, scratch: Path
) -> Iterator[str]:
    file = folder / "descriptor.json"
    answer = _read(by, file)
    if isinstance(answer, Declined):
        yield f"descriptor.json: got {answer}"
        return
    yield from _canonical_differences("descriptor.json", answer, file.read_bytes())
    for name in ("fingerprints", "group_fingerprints"):
        yield from unequal(name.replace("_", " "), answer.fields.get(name), case[name])
    twin = scratch / "twin.msgpack"
    twin.write_bytes(_twin(answer))
    again = _read(by, twin)
    if isinstance(again, Declined):
        yield f"descriptor.json by way of MessagePack: got {again}"
        return
    yield from _canonical_differences(
        "descriptor.json by way of MessagePack", again, _canonical(answer)
    )


def _canonical_differences(file: str, answer: Done, due: bytes) -> Iterator[str]:
    yield from differences(file, _canonical(answer), due)


def _canonical(answer: Done) -> bytes:
    return str(answer.fields.get("canonical")).encode(errors="replace")


def _twin(answer: Done) -> bytes:
    """Empty where it is no hex: no twin is."""
    try:
        return bytes.fromhex(str(answer.fields.get("twin")))
    except ValueError:
        return b""


# --- pages


def _parts(folder: Path, case: Case) -> Iterator[Fields]:
    """Each role of each group, with what the vector says of it."""
    for group, held in case["groups"].items():
        for role, files in held["roles"].items():
            part = {"group": group, "role": role, "blocks": held["blocks"], **files}
            elements = (folder / files["elements"]).read_bytes()
            part["due_elements"] = array(files["elements"], elements, files["shape"])
            if "values" in files:
                values = (folder / files["values"]).read_bytes()
                part["due_values"] = array(files["values"], values, files["shape"], _VALUE_BYTES)
            yield part


def _decode_differences(
    folder: Path, part: Fields, by: Implementation, scratch: Path
) -> Iterator[str]:
    made = {name: scratch / f"{name}.bin" for name in ("elements", "values")}
    for file in made.values():
        file.unlink(missing_ok=True)
    answer = asked(
        by,
        "decode",
        descriptor=str(folder / "descriptor.json"),
        pools=str(folder / "pools"),
        group=part["group"],
        role=part["role"],
        blocks=part["blocks"],
        elements=str(made["elements"]),
        values=str(made["values"]),
    )
    what = f"{part['group']}.{part['role']}"
    if isinstance(answer, Declined):
        yield f"{what}: got {answer}"
        return
    yield from unequal(f"shape of {what}", answer.fields.get("shape"), part["shape"])
    if not made["elements"].is_file():
        yield f"{part['elements']}: no file was written"
    else:
        found = made["elements"].read_bytes()
        yield from array_differences(part["elements"], found, part["due_elements"])
    if made["values"].is_file() != ("values" in part):
        due, got = ("values", "none") if "values" in part else ("no values", "some")
        yield f"values of {what}: expected {due}, got {got}"
    elif "values" in part:
        found = made["values"].read_bytes()
        yield from value_differences(part["values"], found, part["due_values"])


def _encode_part(folder: Path, part: Fields) -> Fields:
    asked_for = {name: part[name] for name in ("group", "role", "blocks", "shape")}
    return asked_for | {"elements": str(folder / part["elements"])}


# --- moves


def _verdict_differences(
    folder: Path, case: Case, source: Case, by: Implementation
) -> Iterator[str]:
    name = f"src-{source['number']}"
    files = {"src": folder / f"{name}.json", "dst": folder / "dst.json"}
    answer = asked(by, "compare", **{side: str(file) for side, file in files.items()})
    if isinstance(answer, Declined):
        yield f"verdict on {name}: got {answer}"
        return
    yield from unequal(f"verdict on {name}", answer.fields.get("verdict"), source["verdict"])
    if case["verdict"] == "refused":
        what = "path of the first difference"
        yield from unequal(what, answer.fields.get("path"), case["path"])


def _move_request(folder: Path, case: Case, scratch: Path) -> Fields:
    """What is to be moved, into pools that nobody has written to."""
    scratch.mkdir()
    request: Fields = {
        "sources": [],
        "dst": {
            "descriptor": str(folder / "dst.json"),
            "pools": write_blank(scratch / "dst", _pool_sizes(folder / "dst.json")),
            "blocks": case["dst_blocks"],
        },
        "num_tokens": case["num_tokens"],
        "first_token": case["first_token"],
    }
    for source in case["sources"]:
        name = f"src-{source['number']}"
        file = folder / f"{name}.json"
        pools = folder / name
        # Vectors that nobody may move have no pools.
        path = str(pools) if pools.is_dir() else write_blank(scratch / name, _pool_sizes(file))
        given = {"descriptor": str(file), "pools": path, "blocks": source["blocks"]}
        request["sources"].append(given)
    if "num_encoder_tokens" in case:
        request["num_encoder_tokens"] = case["num_encoder_tokens"]
    return request


def _unrefused(
    code: str, what: str, folder: Path, case: Case, by: Implementation, scratch: Path
) -> Iterator[str]:
    """Sentences where something is moved, or written, that has to be refused."""
    request = _move_request(folder, case, scratch)
    answer = asked(by, "move", **request, allow_lossy=code != "lossy")
    if isinstance(answer, Done):
        yield f"{what}: expected a refusal ({code}), got none"
    elif answer.code != code:
        yield f"{what}: expected a refusal ({code}), got {answer}"
    due = {
        pool: UNWRITTEN * num_bytes for pool, num_bytes in _pool_sizes(folder / "dst.json").items()
    }
    yield from _pool_differences(
        f"dst after a refusal ({code})", Path(request["dst"]["pools"]), due
    )


def _pool_differences(what: str, found: Path, due: dict[str, bytes]) -> Iterator[str]:
    for pool, data in due.items():
        file = found / f"{pool}.bin"
        if file.is_file():
            yield from differences(f"{what}/{pool}.bin", file.read_bytes(), data)
        else:
            yield f"{what}/{pool}.bin: the file is gone"


# --- files


@contextmanager
def _scratch() -> Iterator[Path]:
    with TemporaryDirectory(prefix="transload-") as name:
        yield Path(name)


def _pool_sizes(file: Path) -> dict[str, int]:
    pools = json.loads(file.read_bytes())["pools"]
    return {pool["id"]: pool["num_bytes"] for pool in pools}


def _read_case(folder: Path) -> Case:
    case: Case = json.loads((folder / "case.json").read_bytes())
    return case


def _read_index(folder: Path) -> list[Case]:
    try:
        index: list[Case] = json.loads((folder / "index.json").read_bytes())
    except (OSError, json.JSONDecodeError) as error:
        raise VectorFailed(f"cannot be read: {error!r}", f"{folder.name}/index.json") from error
    if not isinstance(index, list) or not all(isinstance(entry, dict) for entry in index):
        raise VectorFailed("expected a list of objects", f"{folder.name}/index.json")
    return index
