"""Runs this implementation against conformance vectors: `tests/vectors/README.md` describes them.

What differs is reported, not raised, so that one run names everything.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transload_abi import compare, fingerprints, oracle, plan, proof, text
from transload_abi.errors import AbiError, DescriptorError, PlanError, Refused, VectorFailed
from transload_abi.oracle_numbers import bits_type
from transload_abi.types import Descriptor

Case = dict[str, Any]
"""A vector's `case.json`, or its entry of an index."""

_ERRORS: Final[dict[str, type[AbiError]]] = {"plan": PlanError, "missing": Refused}
"""What a transfer ends with that `case.json` says is none."""


class Result(NamedTuple):
    """One vector.

    Attributes:
        name: The kind and the folder or file, as `decode/odd-bf16`.
        failures: Each difference in a sentence that names the file; none: the vector holds.
    """

    name: str
    failures: tuple[str, ...] = ()

    @property
    def is_passed(self) -> bool:
        """Whether nothing differs."""
        return not self.failures


def check_directory(path: Path) -> list[Result]:
    """Checks all vectors of a folder.

    Those below `decode/` and `convert/` come in the order of their names, those that the indexes of
    `accepted/` and `refused/` list in theirs. Reads files and writes none.

    Raises:
        VectorFailed: There is not a single vector in the folder, or an index cannot be read.
    """
    results = [
        _result(f"{kind}/{folder.name}", check(folder))
        for kind, check in (("decode", check_decode), ("convert", check_convert))
        for folder in sorted((path / kind).glob("*/"))
    ]
    for kind, check_entry in (("accepted", check_accepted), ("refused", check_refused)):
        if (path / kind).is_dir():
            index = _read_index(path / kind)
            results += [
                _result(f"{kind}/{entry.get('file', '?')}", check_entry(path / kind, entry))
                for entry in index
            ]
    if not results:
        raise VectorFailed(f"expected vectors in {path}, found none")
    return results


def check_accepted(folder: Path, entry: Case) -> Iterator[str]:
    """Differences between how this implementation reads a document and what the index says."""
    raw = (folder / entry["file"]).read_bytes()
    d = text.read(raw)
    canonical = (folder.parent / entry["canonical"]).read_bytes()
    yield from _differences(f"{entry['canonical']} from it", text.encode_json(d), canonical)
    found = fingerprints.of_descriptor(d)._asdict()
    yield from _unequal("fingerprints", found, entry["fingerprints"])
    if entry["is_canonical"]:
        is_packed = entry["file"].endswith(".msgpack")
        again = text.encode_msgpack(d) if is_packed else text.encode_json(d)
        yield from _differences("the document written again", again, raw)


def check_refused(folder: Path, entry: Case) -> Iterator[str]:
    """A sentence where this implementation reads a document that nobody may."""
    try:
        text.read((folder / entry["file"]).read_bytes())
    except DescriptorError:
        return
    yield f"expected a refusal ({entry['error']}), got a descriptor"


def check_decode(folder: Path) -> Iterator[str]:
    """Differences between what this implementation reads from pages and what the vector says."""
    case = _read_case(folder)
    raw = (folder / "descriptor.json").read_bytes()
    d = text.read(raw)
    yield from _differences("descriptor.json", text.encode_json(d), raw)
    twin = text.read(text.encode_msgpack(d))
    yield from _unequal("descriptor.json by way of MessagePack", twin, d)
    yield from _fingerprint_failures(d, case)
    memory = _read_pools(folder / "pools", d)
    rewritten = oracle.blank(d)
    groups = {group.id: group for group in d.groups}
    for group, held in case["groups"].items():
        for role, files in held["roles"].items():
            what = (group, role, held["blocks"])
            elements = oracle.read_elements(d, memory, *what)
            stored = _read_array(folder / files["elements"], elements.dtype, files["shape"])
            yield from _differences(files["elements"], elements, stored)
            oracle.write_elements(d, rewritten, *what, stored)
            if oracle.has_values(groups[group], role):
                values = oracle.read_values(d, memory, *what)
                due = _read_array(folder / files["values"], np.dtype("<f4"), files["shape"])
                yield from _differences(files["values"], values, due)
    for pool in rewritten:
        yield from _differences(f"pools/{pool}.bin", rewritten[pool], memory[pool])


def check_convert(folder: Path) -> Iterator[str]:
    """Differences between what this implementation moves and what the vector says."""
    case = _read_case(folder)
    sources = [
        text.read((folder / f"src-{source['number']}.json").read_bytes())
        for source in case["sources"]
    ]
    dst = text.read((folder / "dst.json").read_bytes())
    verdicts = []
    for src, source in zip(sources, case["sources"], strict=True):
        found = compare.compare(src, dst)
        verdicts.append(found.verdict)
        yield from _unequal(f"verdict on src-{source['number']}", found.verdict, source["verdict"])
        if case["verdict"] == "refused":
            paths = [finding.path for finding in found.findings]
            yield from _unequal("path of the first difference", paths[0], case["path"])
    if case["verdict"] == "refused" or verdicts != [each["verdict"] for each in case["sources"]]:
        return
    if case["verdict"] == "lossy":
        yield from _unrefused(Refused, lambda: plan.Cover.compile(sources, dst), "losses")
    if "error" in case:
        yield from _unrefused(_ERRORS[case["error"]], lambda: _plans(sources, dst, case), "moving")
        return
    memory = oracle.blank(dst)
    for number, made, src in _plans(sources, dst, case):
        proof.prove(made, src, dst)
        oracle.execute(made, _read_pools(folder / f"src-{number}", src), memory)
    for pool, due in _read_pools(folder / "dst", dst).items():
        yield from _differences(f"dst/{pool}.bin", memory[pool], due)


def _result(name: str, check: Iterator[str]) -> Result:
    try:
        return Result(name, tuple(check))
    except AbiError as error:
        return Result(name, (f"{type(error).__name__}: {error}",))
    except (OSError, KeyError, json.JSONDecodeError) as error:
        return Result(name, (f"the vector itself cannot be read: {error!r}",))


def _unrefused(error: type[AbiError], act: Callable[[], object], what: str) -> Iterator[str]:
    """A sentence where something is done that has to end with an error."""
    try:
        act()
    except error:
        return
    yield f"{what}: expected {error.__name__}, got none"


def _plans(
    sources: list[Descriptor], dst: Descriptor, case: Case
) -> list[tuple[int, plan.Plan, Descriptor]]:
    """The number of each source that gives something, its plan, and what the plan is one from."""
    span = (
        _by_table(case["dst_blocks"]),
        case["num_tokens"],
        case["first_token"],
        case.get("num_encoder_tokens"),
    )
    blocks = [plan.Blocks(_by_table(source["blocks"]), *span) for source in case["sources"]]
    cover = plan.Cover.compile(sources, dst, allow_lossy=case["verdict"] == "lossy")
    return [
        (number, made, src)
        for number, (made, src) in enumerate(zip(cover.plan(blocks), cover.sources, strict=True))
        if made is not None and src is not None
    ]


def _by_table(blocks: dict[str, list[int]]) -> dict[int, list[int]]:
    return {int(table): ids for table, ids in blocks.items()}


def _fingerprint_failures(d: Descriptor, case: Case) -> Iterator[str]:
    found = fingerprints.of_descriptor(d)._asdict()
    yield from _unequal("fingerprints", found, case["fingerprints"])
    for group in d.groups:
        found = fingerprints.of_group(d, group)._asdict()
        due = case["group_fingerprints"][group.id]
        yield from _unequal(f"fingerprints of group {group.id}", found, due)


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


def _read_pools(folder: Path, d: Descriptor) -> oracle.Memory:
    return {
        pool.id: np.frombuffer((folder / f"{pool.id}.bin").read_bytes(), np.uint8)
        for pool in d.pools
    }


def _read_array(path: Path, dtype: np.dtype[Any], shape: list[int]) -> NDArray[Any]:
    found = np.frombuffer(path.read_bytes(), dtype)
    if found.size != np.prod(shape):
        raise VectorFailed(f"expected {np.prod(shape)} elements, got {found.size}", path.name)
    return found.reshape(shape)


def _unequal(what: str, found: object, due: object) -> Iterator[str]:
    if found != due:
        yield f"{what}: expected {due}, got {found}"


def _differences(
    file: str, found: NDArray[Any] | bytes, due: NDArray[Any] | bytes
) -> Iterator[str]:
    """One sentence with the first index, where arrays differ; a NaN is like any other."""
    found, due = (
        np.frombuffer(each, np.uint8) if isinstance(each, bytes) else each for each in (found, due)
    )
    if found.shape != due.shape:
        yield f"{file}: expected the shape {due.shape}, got {found.shape}"
        return
    same = found == due
    if due.dtype.kind == "f":
        # Zeros of either sign are equal, and here they must not be.
        bits = bits_type("f32")
        same = (found.view(bits) == due.view(bits)) | (np.isnan(found) & np.isnan(due))
    if np.all(same):
        return
    where = np.argwhere(~same)
    index = tuple(int(each) for each in where[0])
    words = f"at {list(index)} expected {_shown(due[index])}, got {_shown(found[index])}"
    yield f"{file}: {words}; {len(where)} of {due.size} differ"


def _shown(value: Any) -> str:
    return f"{value!s}" if value.dtype.kind == "f" else f"{int(value):#x}"
