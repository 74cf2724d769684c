"""The vectors of the KV ABI by way of the wire: what holders send becomes the blocks on file."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from support.wire_payloads import blank, tables, transfer
from transload_abi import oracle
from transload_abi import read as read_descriptor
from transload_abi.errors import PlanError, Refused
from transload_abi.types import Descriptor
from transload_connector.transports.mover import Mover, Request

CONVERT = Path(__file__).parents[2] / "vectors" / "abi" / "convert"
CASES: dict[str, dict[str, Any]] = {
    folder.name: json.loads((folder / "case.json").read_bytes())
    for folder in sorted(CONVERT.iterdir())
}
MOVED = [
    name for name, case in CASES.items() if case["verdict"] != "refused" and "error" not in case
]
ERRORS = [
    name
    for name, case in CASES.items()
    # A block id beyond its pool is the holder's: a reader counts positions.
    if "error" in case and name != "error-block-beyond-the-pool"
]


class World(NamedTuple):
    """A vector: descriptors, the holders' lists, and the request."""

    sources: list[Descriptor]
    dst: Descriptor
    lists: list[dict[int, list[int]]]
    request: Request


def _world(name: str) -> World:
    folder, case = CONVERT / name, CASES[name]
    sources = [
        read_descriptor((folder / f"src-{each['number']}.json").read_bytes())
        for each in case["sources"]
    ]
    lists = [_by_table(each["blocks"]) for each in case["sources"]]
    request = Request(
        [tables(source, held) for source, held in zip(sources, lists, strict=True)],
        _by_table(case["dst_blocks"]),
        case["num_tokens"],
        case["first_token"],
        case.get("num_encoder_tokens"),
    )
    return World(sources, read_descriptor((folder / "dst.json").read_bytes()), lists, request)


def _by_table(blocks: dict[str, list[int]]) -> dict[int, list[int]]:
    return {int(table): ids for table, ids in blocks.items()}


def _pools(folder: Path) -> oracle.Memory:
    return {file.stem: np.fromfile(file, np.uint8) for file in folder.glob("*.bin")}


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 22])
@pytest.mark.parametrize("name", MOVED)
def test_payloads_become_the_bytes_on_file(name: str, chunk_bytes: int) -> None:
    world, folder = _world(name), CONVERT / name
    mover = Mover.compile(world.sources, world.dst, allows_lossy=True, chunk_bytes=chunk_bytes)
    holders = [
        (source, _pools(folder / f"src-{each['number']}"), held)
        for source, each, held in zip(
            world.sources, CASES[name]["sources"], world.lists, strict=True
        )
    ]
    for directly in (True, False):
        memory = blank(world.dst)
        transfer(mover, world.request, holders, memory, directly=directly)
        for pool, due in _pools(folder / "dst").items():
            np.testing.assert_array_equal(memory[pool], due, pool)


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_moved_is_refused_before_anything_is_read(name: str) -> None:
    world = _world(name)
    error = {"plan": PlanError, "missing": Refused}[CASES[name]["error"]]
    with pytest.raises(error, match=r"blocks\.|groups\[0\]"):
        Mover.compile(world.sources, world.dst, allows_lossy=True).reads(world.request)


@pytest.mark.parametrize("name", [name for name in MOVED if CASES[name]["verdict"] == "lossy"])
def test_losses_are_refused_unless_they_are_allowed(name: str) -> None:
    world = _world(name)
    with pytest.raises(Refused, match="losses are not allowed"):
        Mover.compile(world.sources, world.dst)


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case["verdict"] == "refused"]
)
def test_pairs_that_do_not_convert_are_refused(name: str) -> None:
    folder = CONVERT / name
    dst = read_descriptor((folder / "dst.json").read_bytes())
    source = read_descriptor((folder / "src-0.json").read_bytes())
    with pytest.raises(Refused) as refused:
        Mover.compile(source, dst, allows_lossy=True)
    assert refused.value.path
