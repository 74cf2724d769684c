"""Reads and the bytes they ask for, found element by element."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from wire_vectors.spelling import Document

DESCRIPTORS = Path(__file__).parents[2] / "tests" / "vectors" / "wire" / "descriptors"


def reads() -> list[Document]:
    """Reads that are served: descriptor, request, block ids, runs and the bytes' number."""
    found = []
    for name, rows in _READS.items():
        descriptor = _descriptor(name)
        for number, (request, ids) in enumerate(rows):
            read = {"group": "attention", "blocks": [[0, len(ids)]], **request}
            assert _null_block(descriptor, read["group"]) not in ids, name
            runs = _joined(_pieces(descriptor, read, ids))
            found.append(
                {
                    "name": f"{name}-{number + 1}",
                    "descriptor": name,
                    "read": read,
                    "block_ids": ids,
                    "num_bytes": sum(run[2] for run in runs),
                    "runs": runs,
                }
            )
    return found


def refused() -> list[Document]:
    """Reads that are refused."""
    found: list[Document] = []
    for name, rows in _REFUSED.items():
        for path, request in rows:
            read = {"group": "attention", "blocks": [[0, 1]], **request}
            found.append({"descriptor": name, "read": read, "path": path})
    return found


def _null_block(descriptor: Document, name: str) -> object:
    group = next(each for each in descriptor["groups"] if each["id"] == name)
    return group.get("null_block")


def _pieces(descriptor: Document, read: Document, ids: list[int]) -> Iterator[list[Any]]:
    group = next(each for each in descriptor["groups"] if each["id"] == read["group"])
    pools = {pool["id"]: pool for pool in descriptor["pools"]}
    form = read.get("form", "elements")
    first, count = read.get("layers", [0, len(group["layers"])])
    for block in ids:
        if form == "block":
            pool = group["places"][0]["pools"][0]
            size = pools[pool]["block_bytes"]
            yield [pool, block * size, size]
            continue
        for layer in range(first, first + count):
            for number, place in enumerate(group["places"]):
                pool = place["pools"][layer if len(place["pools"]) > 1 else 0]
                start = (
                    place.get("offset", 0)
                    + layer * place.get("layer_stride", 0)
                    + block * place["block_stride"]
                )
                if form == "page":
                    yield [pool, start, place["page_bytes"]]
                else:
                    for byte in _element_bytes(group, number, read.get("heads")):
                        yield [pool, start + byte, 1]


def _element_bytes(group: Document, place: int, heads: list[int] | None) -> list[int]:
    """Bytes with a bit of an element, from the start of a page, ascending."""
    held: set[int] = set()
    origin = group.get("owner", {}).get("heads", [0, 1, 1])[0]
    for role in group["roles"]:
        if role.get("place", 0) != place:
            continue
        axes = sorted(role["shape"])
        for index in product(*(range(role["shape"][axis]) for axis in axes)):
            at = dict(zip(axes, index, strict=True))
            if heads is not None and not heads[0] <= origin + at["H"] < heads[0] + heads[1]:
                continue
            bit = role.get("base_bits", 0) + sum(
                at[axis] // div % extent * stride
                for axis, div, extent, stride in role.get("terms", [])
            )
            held |= {(bit + step) // 8 for step in range(role["bits"])}
    return sorted(held)


def _joined(pieces: Iterator[list[Any]]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    for pool, offset, size in pieces:
        if runs and runs[-1][0] == pool and runs[-1][1] + runs[-1][2] == offset:
            runs[-1][2] += size
        else:
            runs.append([pool, offset, size])
    return runs


def _descriptor(name: str) -> Document:
    found: Document = json.loads((DESCRIPTORS / f"{name}.json").read_text())
    return found


_PAGE, _BLOCK = {"form": "page"}, {"form": "block"}
_ONE, _OTHER = {"heads": [0, 1]}, {"heads": [1, 1]}
_LAST = {"layers": [1, 1]}

_READS: dict[str, list[tuple[Document, list[int]]]] = {
    "bare": [({}, [1]), (_PAGE, [2, 3, 1])],
    "odd-bf16": [({}, [2, 1]), (_PAGE, [1]), ({**_ONE, **_LAST}, [1])],
    "padded-blocks-bf16": [(_BLOCK, [3, 1]), (_PAGE, [1, 2]), ({}, [1])],
    "padded-pages-bf16": [({}, [2, 3]), (_PAGE, [2, 3]), (_BLOCK, [2, 3])],
    "vllm-lbhnc-bf16": [({}, [2, 1, 3]), (_PAGE, [3, 1]), (_OTHER, [1]), (_LAST, [1, 2])],
    "vllm-lbnhc-bf16": [(_ONE, [2]), ({**_OTHER, **_LAST}, [2])],
    "vllm-blhnc-bf16": [({}, [1, 2]), (_BLOCK, [1, 2])],
    "vllm-bhlnc-bf16": [({}, [1]), (_LAST, [1]), (_OTHER, [2]), (_BLOCK, [3])],
    "vllm-lhbnc-bf16": [({}, [1, 2])],
    "vllm-cpu-bf16": [({}, [3]), (_OTHER, [3])],
    "vllm-cpu-two-kernel-blocks": [({}, [1]), (_ONE, [1])],
    "rocm-x8-bf16": [({}, [1]), (_OTHER, [1])],
    "sglang-bf16": [({}, [2, 3]), (_PAGE, [1]), ({**_OTHER, **_LAST}, [1])],
    "per-token-head-e4m3-unaligned": [({}, [1]), (_ONE, [1])],
    "per-token-head-e4m3fnuz-planes": [({}, [1]), (_ONE, [1])],
    "slice-of-heads": [({}, [1]), ({"heads": [2, 2]}, [1]), ({"heads": [3, 1]}, [1])],
    "mla-656": [({}, [1])],
    "mla-656-planes": [({}, [1, 2]), (_PAGE, [1])],
    "mla-bf16": [(_LAST, [1])],
    "recurrent-conv-ssm": [({"group": "states"}, [3])],
    "overlay-full-and-window": [
        ({"group": "full"}, [1]),
        ({"group": "window"}, [2]),
        ({"group": "window", "form": "block"}, [2]),
    ],
    "encoder-decoder": [({"group": "cross"}, [1]), ({"group": "self"}, [1])],
    "nibbles-by-element": [({}, [1, 2]), (_ONE, [1]), (_OTHER, [0])],
    "nibbles-of-k-and-v": [({}, [1]), (_OTHER, [1])],
    "nibbles-of-two-heads": [({}, [1]), ({"heads": [0, 2]}, [1])],
    "nibbles-apart": [({}, [1]), (_OTHER, [1])],
    "nibbles-that-meet": [({}, [1, 2])],
}
_REFUSED: dict[str, list[tuple[str, Document]]] = {
    "bare": [
        ("read.group", {"group": "none"}),
        ("read.layers", {"layers": [1, 1]}),
        ("read.layers", {"layers": [0, 2]}),
        ("read.heads", {"heads": [0, 2]}),
        ("read.heads", {"heads": [1, 1]}),
        ("read.heads", {**_ONE, **_PAGE}),
        ("read.form", _BLOCK),
    ],
    "slice-of-heads": [
        ("read.heads", {"heads": [0, 1]}),
        ("read.heads", {"heads": [3, 2]}),
        ("read.form", _PAGE),
        ("read.heads", {"heads": [2, 1], **_BLOCK}),
        ("read.layers", {**_LAST, **_BLOCK}),
    ],
    "sglang-bf16": [("read.form", _BLOCK)],
    "mla-bf16": [("read.heads", _ONE)],
    "group-that-stays": [("read.group", {"group": "draft"})],
    "nibbles-of-two-heads": [("read.heads", _ONE), ("read.heads", _OTHER)],
}
