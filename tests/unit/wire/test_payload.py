"""Which bytes a read asks for: against runs that were found element by element."""

import json
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest

from transload_abi import read as read_descriptor
from transload_abi.types import Descriptor
from transload_abi.wire import payload
from transload_abi.wire.errors import BadRead
from transload_abi.wire.messages import Read
from transload_abi.wire.payload import Run, payload_of

VECTORS = Path(__file__).parents[2] / "vectors" / "wire"
FILE: dict[str, Any] = json.loads((VECTORS / "payloads.json").read_text())
READS: list[dict[str, Any]] = FILE["reads"]


def _descriptor(name: str) -> Descriptor:
    return read_descriptor((VECTORS / "descriptors" / f"{name}.json").read_bytes())


def _read(fields: dict[str, Any]) -> Read:
    return msgspec.convert({"type": "read", "id": 1, "handoff": "h", **fields}, Read)


def _large(num_heads: int, num_tokens: int, v_bits: int, terms: str) -> Descriptor:
    """A cache of 64 elements a head; `terms` is the order of the axes, the fastest last."""
    extents = {"H": num_heads, "N": num_tokens, "D": 64}
    strides, stride = {}, 16 if v_bits else 32
    for axis in reversed(terms):
        strides[axis] = stride
        stride *= extents[axis]
    page = prod(extents.values()) * 4
    role = {"dtype": "bf16", "bits": 16, "shape": extents}
    rows = [[axis, 1, extents[axis], strides[axis]] for axis in "HND"]
    base = v_bits or 16
    return read_descriptor(
        json.dumps(
            {
                "abi": "kvabi/1",
                "model": {"name": "m", "num_layers": 1, "rope": {"state": "none"}},
                "pools": [{"id": "kv", "memory": "host", "num_blocks": 1, "num_bytes": 2 * page}],
                "groups": [
                    {
                        **{"id": "attention", "kind": "full", "layers": [0]},
                        "tokens_per_block": num_tokens,
                        "owner": {"heads": [0, num_heads, num_heads]},
                        "places": [{"pools": ["kv"], "block_stride": 2 * page}],
                        "roles": [
                            {**role, "role": "k", "terms": rows},
                            {**role, "role": "v", "terms": rows, "base_bits": base},
                        ],
                    }
                ],
            }
        ).encode()
    )


@pytest.mark.parametrize("case", READS, ids=lambda case: str(case["name"]))
def test_the_runs_are_those_of_the_elements(case: dict[str, Any]) -> None:
    found = payload_of(_descriptor(case["descriptor"]), _read(case["read"]))
    assert [list(run) for run in found.runs_of(case["block_ids"])] == case["runs"]


@pytest.mark.parametrize("case", READS, ids=lambda case: str(case["name"]))
def test_the_number_of_bytes_needs_no_block_ids(case: dict[str, Any]) -> None:
    read = _read(case["read"])
    assert (
        payload_of(_descriptor(case["descriptor"]), read).num_bytes(read.blocks)
        == (case["num_bytes"])
    )


@pytest.mark.parametrize("case", READS, ids=lambda case: str(case["name"]))
def test_every_layer_of_every_block_has_as_many_bytes(case: dict[str, Any]) -> None:
    found = payload_of(_descriptor(case["descriptor"]), _read(case["read"]))
    sizes = {
        sum(run.num_bytes for run in found.runs(block, layer))
        for block in case["block_ids"]
        for layer in found.layers
    }
    assert sizes == {found.layer_bytes}
    assert found.block_bytes == found.layer_bytes * len(found.layers)


@pytest.mark.parametrize("case", READS, ids=lambda case: str(case["name"]))
def test_runs_of_a_layer_do_not_touch(case: dict[str, Any]) -> None:
    found = payload_of(_descriptor(case["descriptor"]), _read(case["read"]))
    runs = found.runs(case["block_ids"][0], found.layers[0])
    for before, after in pairwise(runs):
        assert (before.pool, before.offset + before.num_bytes) != (after.pool, after.offset)


@pytest.mark.parametrize(
    "case", FILE["refused"], ids=lambda case: f"{case['descriptor']}-{case['read']}"
)
def test_a_read_of_what_is_not_there_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(BadRead) as caught:
        payload_of(_descriptor(case["descriptor"]), _read(case["read"]))
    assert caught.value.path == case["path"]
    assert (caught.value.code, caught.value.is_fatal) == ("bad_read", False)


def test_an_opaque_group_is_not_cut_by_heads() -> None:
    descriptor = _large(2, 4, 0, "HND")
    group = msgspec.structs.replace(descriptor.groups[0], opaque="an engine")
    descriptor = msgspec.structs.replace(descriptor, groups=(group,))
    asked = _read({"group": "attention", "blocks": [[0, 1]], "heads": [0, 1]})
    with pytest.raises(BadRead, match=r"read\.heads: 'attention' cannot be cut by heads"):
        payload_of(descriptor, asked)


def test_pages_that_are_whole_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of a thousand tokens that alternate by element: one run, in one step."""
    monkeypatch.setattr(payload, "MAX_PAGE_RUNS", 1)
    descriptor = _large(16, 1024, 0, "NHD")
    found = payload_of(descriptor, _read({"group": "attention", "blocks": [[0, 1]]}))
    assert found.runs(0, 0) == [Run("kv", 0, 16 * 1024 * 64 * 4)]


def test_a_head_of_a_page_by_heads_is_one_run_of_each_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_PAGE_RUNS", 2)
    size = 16 * 1024 * 64 * 2
    descriptor = _large(16, 1024, 8 * size, "HND")
    asked = _read({"group": "attention", "blocks": [[0, 1]], "heads": [5, 2]})
    head = size // 16
    assert payload_of(descriptor, asked).runs(0, 0) == [
        Run("kv", 5 * head, 2 * head),
        Run("kv", size + 5 * head, 2 * head),
    ]


def test_a_page_in_too_many_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_PAGE_RUNS", 1023)
    descriptor = _large(16, 1024, 0, "NHD")
    asked = _read({"group": "attention", "blocks": [[0, 1]], "heads": [0, 1]})
    with pytest.raises(BadRead, match=r"read\.form: a page of 'attention' comes to 1024 runs"):
        payload_of(descriptor, asked)
