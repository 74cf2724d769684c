"""Fingerprints of a canonical descriptor, from the definitions in `connector/ABI.md`, section 7."""

from __future__ import annotations

import hashlib
import json

from abi_vectors.pages import Document


def canonical_json(document: object) -> bytes:
    """Canonical JSON of a document that holds texts, whole numbers, lists and objects."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def of_group(descriptor: Document, group: Document) -> dict[str, str]:
    """The three fingerprints of a group."""
    used = {pool for place in group["places"] for pool in place["pools"]}
    page = {
        "codec": group.get("codec", {}),
        "endian": "little",
        "roles": group["roles"],
        "tokens_per_block": group["tokens_per_block"],
        "tokens_per_state": group.get("tokens_per_state", [1, 1]),
    }
    if group.get("opaque"):
        page["opaque"] = group["opaque"]
    placement = {
        "layers": group["layers"],
        "null_block": group.get("null_block"),
        "owner": group.get("owner", {}),
        "places": group["places"],
        "pools": [pool for pool in descriptor["pools"] if pool["id"] in used],
        "table": group.get("table", 0),
    }
    parts = {"page": page, "meaning": _meaning(descriptor["model"], group), "placement": placement}
    return {name: _digest(name, part) for name, part in parts.items()}


def _meaning(model: Document, group: Document) -> Document:
    """What moving bits alone does not change."""
    codec, layers = group.get("codec", {}), group["layers"]
    names = ("weights",) if "weights" in model else ("name", "revision")
    order = sorted(range(len(layers)), key=lambda position: layers[position])
    params = {
        name: [value[position] for position in order] if name.startswith("scales.") else value
        for name, value in codec.get("params", {}).items()
    }
    roles = [
        {
            "dtype": role["dtype"],
            "role": role["role"],
            "shape": {axis: role["shape"][axis] for axis in role["shape"] if axis in "DG"},
        }
        for role in group["roles"]
    ]
    return {
        "codec": {"id": codec.get("id", "none"), "params": params},
        "heads": group.get("owner", {}).get("heads", [0, 1, 1])[2],
        "kind": group["kind"],
        "layers": sorted(layers),
        "model": {name: model.get(name, "") for name in (*names, "adapter")}
        | {"kv_share": sorted(model.get("kv_share", []))}
        | {"num_layers": model["num_layers"], "rope": model["rope"]},
        "roles": roles,
        "tokens_per_state": group.get("tokens_per_state", [1, 1]),
        "window": group.get("window", 0),
    }


def of_descriptor(descriptor: Document) -> dict[str, str]:
    """The three fingerprints of all groups together."""
    groups = [of_group(descriptor, group) for group in descriptor["groups"]]
    page, meaning, placement = (
        sorted(group[name] for group in groups) for name in ("page", "meaning", "placement")
    )
    return {
        "page": _digest("page", page),
        "meaning": _digest("meaning", meaning),
        "placement": _digest("placement", {"groups": placement, "pools": descriptor["pools"]}),
    }


def _digest(name: str, part: object) -> str:
    return hashlib.sha256(name.encode() + b":" + canonical_json(part)).hexdigest()
