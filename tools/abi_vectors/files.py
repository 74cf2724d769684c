"""Fills caches and writes the folders of `tests/vectors/abi`, laid out as its README says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from abi_vectors import fingerprints, requests
from abi_vectors.accepted_cases import accepted
from abi_vectors.decode_cases import DecodeCase
from abi_vectors.numbers import elements, group_values, scale_elements
from abi_vectors.pages import Array, Cache, Document, kind, write
from abi_vectors.refusals import Refusal
from abi_vectors.transfers import ConvertCase

_WITHOUT_VALUES = ("turboquant", "opaque")
_VERDICTS = ("identical", "lossless", "lossy")


def write_decode(root: Path, case: DecodeCase, seed: int) -> None:
    """Fills the case's cache and writes its folder."""
    folder = root / "decode" / case.name
    groups: Document = {}
    for name, group in case.cache.groups.items():
        blocks = case.blocks.get(name, [3, 1])
        written: dict[str, Array] = {}
        for number, view in enumerate(group.views):
            shape = (len(view.layers), len(blocks), *view.extents)
            own = seed * 16 + number
            if view.dtype == "f32" and view.role.endswith("_scale"):
                found = scale_elements("f32", shape, own)
            else:
                found = elements(view.dtype, shape, own)
            for layer, pages in enumerate(found):
                for block, page in zip(blocks, pages, strict=True):
                    write(view, layer, block, page)
            written[view.role] = found
        roles: Document = {}
        for view in group.views:
            found = written[view.role]
            file = f"{name}.{view.role}.bin"
            _put(folder / "elements" / file, found.astype(kind(view.dtype)).tobytes())
            roles[view.role] = {"shape": list(found.shape), "elements": f"elements/{file}"}
            codec = group.document.get("codec", {}).get("id")
            if codec in _WITHOUT_VALUES or view.role == "position":
                continue
            values = group_values(group, written, view.role)
            _put(folder / "values" / file, values.astype("<f4").tobytes())
            roles[view.role]["values"] = f"values/{file}"
        groups[name] = {"blocks": blocks, "roles": roles}
    descriptor = case.cache.descriptor()
    document = {
        "description": case.description,
        "fingerprints": fingerprints.of_descriptor(descriptor),
        "group_fingerprints": {
            group["id"]: fingerprints.of_group(descriptor, group) for group in descriptor["groups"]
        },
        "groups": groups,
    }
    _put(folder / "descriptor.json", fingerprints.canonical_json(descriptor))
    _put(folder / "case.json", _pretty(document))
    _put_pools(folder / "pools", case.cache)


def write_convert(root: Path, case: ConvertCase) -> None:
    """Fills the case's caches and writes its folder."""
    folder = root / "convert" / case.name
    sources = []
    for number, source in enumerate(case.sources):
        _put(folder / f"src-{number}.json", _descriptor(source.cache))
        if not case.error:
            requests.fill_source(source.cache, source.blocks, case)
            _put_pools(folder / f"src-{number}", source.cache)
        blocks = _by_table(source.blocks)
        sources.append({"number": number, "verdict": source.verdict, "blocks": blocks})
    _put(folder / "dst.json", _descriptor(case.dst))
    if not case.error:
        requests.fill_destination(case)
        _put_pools(folder / "dst", case.dst)
    # A source that has nothing to give has no part in it.
    given = [each.verdict for each in case.sources if each.verdict != "refused"]
    document = {
        "description": case.description,
        "verdict": max(given, key=_VERDICTS.index),
        "sources": sources,
        "dst_blocks": _by_table(case.dst_blocks),
        "num_tokens": case.num_tokens,
        "first_token": case.first_token,
    }
    if case.num_encoder_tokens is not None:
        document["num_encoder_tokens"] = case.num_encoder_tokens
    if case.error:
        document["error"] = case.error
    _put(folder / "case.json", _pretty(document))


def write_refusal(root: Path, case: Refusal) -> None:
    """Writes the folder of a pair that does not convert."""
    folder = root / "convert" / case.name
    _put(folder / "src-0.json", _descriptor(case.src))
    _put(folder / "dst.json", _descriptor(case.dst))
    document: Document = {"description": case.description, "verdict": "refused"}
    document["path"] = case.path
    document["sources"] = [{"number": 0, "verdict": "refused"}]
    _put(folder / "case.json", _pretty(document))


def write_accepted(root: Path, decodes: list[DecodeCase], plain: Document) -> None:
    """Writes the documents of `accepted/` that are not written by hand, and the index of all."""
    folder = root / "accepted"
    decoded = {case.name: case.cache.descriptor() for case in decodes}
    cases = accepted(decoded, plain)
    canonical = {f"decode/{name}/descriptor.json": each for name, each in decoded.items()}
    for case in cases:
        if case.data is not None:
            _put(folder / case.file, case.data)
        if case.canonical == f"accepted/{case.file}" and case.data is not None:
            canonical[case.canonical] = json.loads(case.data)
    index = [
        {
            "file": case.file,
            "canonical": case.canonical,
            "is_canonical": case.is_canonical,
            "fingerprints": fingerprints.of_descriptor(canonical[case.canonical]),
        }
        for case in cases
    ]
    _put(folder / "index.json", _pretty(index))


def _descriptor(cache: Cache) -> bytes:
    return fingerprints.canonical_json(cache.descriptor())


def _by_table(blocks: dict[int, list[int]]) -> Document:
    return {str(table): ids for table, ids in blocks.items()}


def _put_pools(folder: Path, cache: Cache) -> None:
    for name, memory in cache.memory.items():
        _put(folder / f"{name}.bin", np.asarray(memory).tobytes())


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _pretty(document: object) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
