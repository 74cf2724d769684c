"""Other spellings of a canonical descriptor: each function says the same in more words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from abi_vectors.pages import Document

Spell = Callable[[Document], Document]
"""From a descriptor to one that has the same canonical form."""

_EXTENSIONS: Document = {
    "x_": -(2**53) + 1,
    "x_vendor": {"abi": "kvabi/9", "null": None, "list": [True, [], {"x_": ""}, -1, 2**53 - 1]},
}


def all_of(*spells: Spell) -> Spell:
    """One after the other, on a copy."""

    def spell(document: Document) -> Document:
        document = copy.deepcopy(document)
        for each in spells:
            document = each(document)
        return document

    return spell


def split_terms(document: Document) -> Document:
    """Digits in halves, with digits of extent 1 between; the last one comes first."""
    for role in _roles(document):
        terms: list[list[Any]] = []
        for axis, div, extent, stride in role.get("terms", []):
            while extent % 2 == 0 and len(terms) < 12:
                terms += [[axis, div, 2, stride], [axis, 2 * div, 1, 24]]
                div, extent, stride = 2 * div, extent // 2, 2 * stride
            if extent > 1:
                terms.append([axis, div, extent, stride])
        role["terms"] = terms[::-1]
    return document


def reorder(document: Document) -> Document:
    """Everything that has no order of its own from back to front, the names in objects as well."""
    document["pools"].reverse()
    document["groups"].reverse()
    for group in document["groups"]:
        group["roles"].reverse()
    document["model"].get("kv_share", []).reverse()
    return _reversed_names(document)


def multiply_places(document: Document) -> Document:
    """A place for each role, behind one that none uses and that cannot be true."""
    for group in document["groups"]:
        unused: Document = {"pools": [document["pools"][0]["id"]], "block_stride": 1}
        places = [unused | {"offset": 2**40, "layer_stride": 3}]
        for role in group["roles"]:
            places.append(copy.deepcopy(group["places"][role.get("place", 0)]))
            role["place"] = len(places) - 1
            if len(group["layers"]) == 1:
                places[-1]["layer_stride"] = 8 * len(places)
        group["places"] = places
    return document


def spell_defaults(document: Document) -> Document:
    """Every field, whether it says something or not."""
    producer = dict.fromkeys(("engine", "version", "backend", "layout"), "")
    model: Document = {"revision": "", "weights": "", "adapter": "", "kv_share": []}
    model |= document["model"]
    model["rope"] = {"params": {}} | model["rope"]
    pool: Document = {"align": 1, "block_bytes": 0}
    document.setdefault("producer", producer)
    document |= {"endian": "little", "model": model}
    document["pools"] = [pool | each for each in document["pools"]]
    document["groups"] = [_whole_group(group) for group in document["groups"]]
    return document


def spell_empty(document: Document) -> Document:
    """Objects that are a default as empty ones."""
    document.setdefault("producer", {})
    for group in document["groups"]:
        group["owner"] = {"tokens": {}} | group.get("owner", {})
        group.setdefault("codec", {})
    return document


def name_producer(document: Document) -> Document:
    """Says who wrote it, which decides nothing."""
    return document | {"producer": {"engine": "example", "layout": "LBHNC", "version": "1"}}


def extend(document: Document) -> Document:
    """Extensions in every object that has fields."""
    document["model"]["rope"] |= _EXTENSIONS
    document["model"] |= _EXTENSIONS
    document["producer"] = document.get("producer", {}) | _EXTENSIONS
    for pool in document["pools"]:
        pool |= _EXTENSIONS
    for group in document["groups"]:
        for place in group["places"]:
            place |= _EXTENSIONS
        owner = group.get("owner", {})
        tokens = owner.get("tokens", {}) | _EXTENSIONS
        group["owner"] = owner | {"tokens": tokens} | _EXTENSIONS
        group["codec"] = group.get("codec", {}) | _EXTENSIONS
        group |= _EXTENSIONS
    for role in _roles(document):
        role |= _EXTENSIONS
    return document | _EXTENSIONS


def _whole_group(group: Document) -> Document:
    place = {"layer_stride": 0, "offset": 0, "page_bytes": 0}
    role = {"terms": [], "base_bits": 0, "place": 0}
    given: Document = {"tokens_per_state": [1, 1], "window": 0, "table": 0, "null_block": None}
    given |= {"transferable": True, "opaque": ""} | group
    given["codec"] = {"id": "none", "params": {}} | group.get("codec", {})
    owner = {"heads": [0, 1, 1], "replica": [0, 1]} | group.get("owner", {})
    # The interleave of a slice of one rank says nothing, whatever it is.
    tokens = {"rank": 0, "size": 1, "interleave": 5} | owner.get("tokens", {})
    given["owner"] = owner | {"tokens": tokens}
    given["places"] = [place | each for each in group["places"]]
    given["roles"] = [role | each for each in group["roles"]]
    return given


def _roles(document: Document) -> list[Document]:
    return [role for group in document["groups"] for role in group["roles"]]


def _reversed_names(document: Document) -> Document:
    turned: Document = {}
    for name in reversed(sorted(document)):
        value = document[name]
        if isinstance(value, dict):
            value = _reversed_names(value)
        elif isinstance(value, list):
            value = [_reversed_names(each) if isinstance(each, dict) else each for each in value]
        turned[name] = value
    return turned
