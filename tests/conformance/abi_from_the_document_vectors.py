"""Running the vectors of `kvabi/1` (12).

`run` returns what is wrong with the vectors of a directory, a line each.
"""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from conformance.abi_from_the_document import read
from conformance.abi_from_the_document_compare import compare, worst
from conformance.abi_from_the_document_fields import ROLES
from conformance.abi_from_the_document_moves import MissingError, PlanError, Request, Side, move
from conformance.abi_from_the_document_numbers import encode
from conformance.abi_from_the_document_spelling import (
    RefusedError,
    Tree,
    parse_json,
    write_twin,
)
from conformance.abi_from_the_document_values import (
    Cache,
    canonical,
    fingerprints,
    group_fingerprints,
    indices,
    text_of,
)


def vectors(directory: Path) -> list[str]:
    """The names of the vectors in a directory, as `check` takes them."""
    cases = [
        p.parent for kind in ("decode", "convert") for p in directory.glob(f"{kind}/*/case.json")
    ]
    files = [p for kind in ("accepted", "refused") for p in directory.glob(f"{kind}/*")]
    return sorted(str(p.relative_to(directory)) for p in cases + files if p.name != "index.json")


def check(directory: Path, name: str) -> list[str]:
    """What is wrong with one vector."""
    kind = name.split("/")[0]
    checks = {"decode": _decode, "convert": _convert, "accepted": _accepted, "refused": _refused}
    try:
        return [f"{name}: {fault}" for fault in checks[kind](directory / name)]
    except (RefusedError, PlanError, MissingError) as error:
        return [f"{name}: {error}"]


def run(directory: Path) -> list[str]:
    """What is wrong with all vectors of a directory."""
    return [fault for name in vectors(directory) for fault in check(directory, name)]


def load(path: Path, pools: Path | None = None) -> Cache:
    descriptor = canonical(read(path.read_bytes()))
    sizes = {pool["id"]: pool["num_bytes"] for pool in descriptor["pools"]}
    data = {
        name: bytearray((pools / f"{name}.bin").read_bytes())
        if pools
        else bytearray(b"\xa5" * size)
        for name, size in sizes.items()
    }
    return Cache(descriptor, data)


def _decode(path: Path) -> Iterator[str]:
    data = (path / "descriptor.json").read_bytes()
    case = json.loads((path / "case.json").read_text())
    cache = load(path / "descriptor.json", path / "pools")
    blank = load(path / "descriptor.json")
    d = cache.descriptor
    if text_of(d).encode() != data:
        yield "another canonical JSON"
    if read(write_twin(parse_json(data)), twin=True) != read(data):
        yield "another twin"
    if fingerprints(d) != case["fingerprints"]:
        yield f"fingerprints {fingerprints(d)}"
    for g in d["groups"]:
        if group_fingerprints(d, g) != case["group_fingerprints"][g["id"]]:
            yield f"fingerprints of {g['id']}: {group_fingerprints(d, g)}"
        for role in g["roles"]:
            yield from _decode_role(path, (cache, blank), g, role, case["groups"][g["id"]])
    for name, pool in blank.pools.items():
        if pool != cache.pools[name]:
            yield f"other bytes in pool {name} after writing the elements"


def _decode_role(
    path: Path, caches: tuple[Cache, Cache], g: Tree, role: Tree, told: Tree
) -> Iterator[str]:
    """Compare the elements and values of a role, and write the told ones into the second cache."""
    cache, blank = caches
    name, size = role["role"], -(-role["bits"] // 8)
    files = told["roles"][name]
    elements = (path / files["elements"]).read_bytes()
    values = (path / files["values"]).read_bytes() if "values" in files else b""
    got, worth = bytearray(), bytearray()
    each = list(indices(role))
    for layer, block, index in product(range(len(g["layers"])), told["blocks"], each):
        where = (name, g, layer, block, index)
        raw = int.from_bytes(elements[len(got) : len(got) + size], "little")
        got += cache.get(*where).to_bytes(size, "little")
        value = cache.value(*where)
        worth += b"" if value is None else encode("f32", value).to_bytes(4, "little")
        blank.put(*where, raw)
    shape = [len(g["layers"]), len(told["blocks"]), *(role["shape"][x] for x in ROLES[name])]
    if files["shape"] != shape:
        yield f"{name} of {g['id']} is of shape {shape}"
    if got != elements:
        yield f"other elements in {files['elements']}"
    if worth != values:
        yield f"other values of {name} of {g['id']}"


def _convert(path: Path) -> Iterator[str]:
    case = json.loads((path / "case.json").read_text())
    refused, error = case["verdict"] == "refused", case.get("error")
    target = load(path / "dst.json")
    for file in path.glob("*.json"):
        if file.name != "case.json" and text_of(read(file.read_bytes())) != file.read_text():
            yield f"{file.name} is not canonical"
    sources, comparisons = [], []
    for told in case["sources"]:
        name = f"src-{told['number']}"
        cache = load(path / f"{name}.json", None if refused or error else path / name)
        comparison = compare(cache.descriptor, target.descriptor)
        comparisons.append(comparison)
        if worst(comparison.verdicts).name != told["verdict"]:
            yield f"{name} is {worst(comparison.verdicts)}"
        sources.append(Side(cache, lists(told.get("blocks", {}))))
    taking_part = [c for c in comparisons if c.moves] or comparisons
    total = worst([verdict for c in taking_part for verdict in c.verdicts])
    if total.name != case["verdict"] or total.path != case.get("path", ""):
        yield f"the verdict is {total}"
    if refused:
        return
    wanted = Side(target, lists(case["dst_blocks"]))
    request = Request(case["num_tokens"], case["first_token"], case.get("num_encoder_tokens"))
    if total.name == "lossy":
        try:
            move(sources, wanted, request)
            yield "moved with losses that nobody allowed"
        except RefusedError:
            pass
    got = None
    try:
        move(sources, wanted, request, allow_losses=True)
    except (PlanError, MissingError) as caught:
        got = "plan" if isinstance(caught, PlanError) else "missing"
    if got != error:
        yield f"the error is {got}"
    for name, pool in target.pools.items():
        told = b"\xa5" * len(pool) if error else (path / "dst" / f"{name}.bin").read_bytes()
        wrong = [i for i in range(len(pool)) if pool[i] != told[i]]
        if wrong or len(pool) != len(told):
            yield f"{len(wrong)} other bytes in pool {name}, the first at {wrong[:1]}"


def lists(blocks: dict[str, list[int]]) -> dict[int, list[int]]:
    return {int(table): ids for table, ids in blocks.items()}


def _accepted(path: Path) -> Iterator[str]:
    index = json.loads((path.parent / "index.json").read_text())
    told = next(entry for entry in index if entry["file"] == path.name)
    data, twin = path.read_bytes(), path.suffix == ".msgpack"
    this = read(data, twin)
    text = text_of(this)
    if text.encode() != (path.parent.parent / told["canonical"]).read_bytes():
        yield "another canonical JSON"
    if fingerprints(canonical(this)) != told["fingerprints"]:
        yield f"fingerprints {fingerprints(canonical(this))}"
    again = write_twin(json.loads(text)) if twin else text.encode()
    if (again == data) != told["is_canonical"]:
        yield f"is_canonical is {again == data}"


def _refused(path: Path) -> Iterator[str]:
    try:
        read(path.read_bytes(), twin=path.suffix == ".msgpack")
    except RefusedError:
        return
    yield "is not refused"
