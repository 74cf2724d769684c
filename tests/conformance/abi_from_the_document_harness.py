"""What was written from the ABI's document, offered as a harness: `python -m` runs it.

`encode` is left out: whoever offers less than all can be checked for the rest.
"""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from conformance.abi_from_the_document import read
from conformance.abi_from_the_document_compare import compare, worst
from conformance.abi_from_the_document_fields import ROLES
from conformance.abi_from_the_document_moves import MissingError, PlanError, Request, Side, move
from conformance.abi_from_the_document_numbers import encode
from conformance.abi_from_the_document_spelling import RefusedError, Tree, write_twin
from conformance.abi_from_the_document_values import (
    canonical,
    fingerprints,
    group_fingerprints,
    indices,
    text_of,
)
from conformance.abi_from_the_document_vectors import lists, load


def _read(file: str, encoding: str) -> Tree:
    this = canonical(read(Path(file).read_bytes(), twin=encoding == "msgpack"))
    text = text_of(this)
    return {
        "canonical": text,
        "twin": write_twin(json.loads(text)).hex(),
        "fingerprints": fingerprints(this),
        "group_fingerprints": {g["id"]: group_fingerprints(this, g) for g in this["groups"]},
    }


def _decode(
    descriptor: str,
    pools: str,
    group: str,
    role: str,
    blocks: list[int],
    elements: str,
    values: str,
) -> Tree:
    cache = load(Path(descriptor), Path(pools))
    g = next(g for g in cache.descriptor["groups"] if g["id"] == group)
    this = next(each for each in g["roles"] if each["role"] == role)
    size = -(-this["bits"] // 8)
    got, worth = bytearray(), bytearray()
    for layer, block, index in product(range(len(g["layers"])), blocks, list(indices(this))):
        where = (role, g, layer, block, index)
        got += cache.get(*where).to_bytes(size, "little")
        value = cache.value(*where)
        worth += b"" if value is None else encode("f32", value).to_bytes(4, "little")
    Path(elements).write_bytes(got)
    if worth:
        Path(values).write_bytes(worth)
    return {"shape": [len(g["layers"]), len(blocks), *(this["shape"][x] for x in ROLES[role])]}


def _compare(src: str, dst: str) -> Tree:
    old, new = (canonical(read(Path(file).read_bytes())) for file in (src, dst))
    found = worst(compare(old, new).verdicts)
    return {"verdict": found.name, "path": found.path}


def _move(
    sources: list[Tree],
    dst: Tree,
    num_tokens: int,
    first_token: int,
    allow_lossy: bool,
    num_encoder_tokens: int | None = None,
) -> Tree:
    old, new = [_side(source) for source in sources], _side(dst)
    request = Request(num_tokens, first_token, num_encoder_tokens)
    move(old, new, request, allow_losses=allow_lossy)
    for name, data in new.cache.pools.items():
        (Path(dst["pools"]) / f"{name}.bin").write_bytes(data)
    return {}


def _side(given: Tree) -> Side:
    return Side(load(Path(given["descriptor"]), Path(given["pools"])), lists(given["blocks"]))


OPERATIONS = {"read": _read, "decode": _decode, "compare": _compare, "move": _move}
CODES = {RefusedError: "lossy", PlanError: "plan", MissingError: "missing"}


def answer(request: Tree) -> Tree:
    """What is said to a request."""
    operation: Any = OPERATIONS.get(request["op"])
    if operation is None:
        return {"unsupported": "not written"}
    try:
        return {"ok": operation(**request["args"])}
    except (RefusedError, PlanError, MissingError) as error:
        path = getattr(error, "path", "")
        return {"refused": {"code": CODES[type(error)], "path": path, "says": str(error)}}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps({"id": request["id"], **answer(request)}) + "\n")
        sys.stdout.flush()
