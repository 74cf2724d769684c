"""Canonical forms, fingerprints, elements and values of `kvabi/1`, from its document alone."""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from conformance.abi_from_the_document_codecs import has_values, page_scale, param_scale
from conformance.abi_from_the_document_fields import AXES, FIELDS, MUST, ROLES, number
from conformance.abi_from_the_document_numbers import decode, single
from conformance.abi_from_the_document_spelling import Tree, write_json

Index = Mapping[str, int]

# --- 1.1: the canonical form ---------------------------------------------------------------------


def canonical(d: Tree) -> Tree:
    """The canonical form of a descriptor that was read, with its defaults still in."""
    groups = [_canonical_group(g) for g in d["groups"]]
    model = {**d["model"], "kv_share": sorted(d["model"]["kv_share"])}
    groups.sort(key=lambda g: (g["table"], g["id"]))
    return {
        **d,
        "model": model,
        "pools": sorted(d["pools"], key=lambda p: str(p["id"])),
        "groups": groups,
    }


def _canonical_group(g: Tree) -> Tree:
    old = plain_places(g)
    places: list[Tree] = []
    roles = []
    for role in sorted(g["roles"], key=lambda r: str(r["role"])):
        place = old[role["place"]]
        if place not in places:
            places.append(place)
        roles.append({**role, "place": places.index(place), "terms": _merged(role["terms"])})
    owner = {**g["owner"], "tokens": plain_tokens(g)}
    return {**g, "places": places, "roles": roles, "owner": owner}


def plain_places(g: Tree) -> list[Tree]:
    """The places of a group, equal where the canonical form makes one of them."""
    alone = len(g["layers"]) == 1
    return [{**place, "layer_stride": 0} if alone else place for place in g["places"]]


def plain_tokens(g: Tree) -> Tree:
    """The token slice of a group, in canonical form."""
    tokens: Tree = g["owner"]["tokens"]
    return {**tokens, "interleave": 1} if tokens["size"] == 1 else tokens


def _merged(terms: list[list[Any]]) -> list[list[Any]]:
    merged: list[list[Any]] = []
    for axis, div, extent, stride in sorted(terms, key=lambda t: (AXES.index(t[0]), t[1])):
        if extent == 1:
            continue
        before: list[Any] = merged[-1] if merged else ["", 0, 0, 0]
        if before[0] == axis and [div, stride] == [before[2] * x for x in (before[1], before[3])]:
            before[2] *= extent
        else:
            merged.append([axis, div, extent, stride])
    return merged


def short(tree: Tree, kind: str) -> Tree:
    """A tree without the fields that equal their default."""
    out = {}
    for name, (what, default) in FIELDS[kind].items():
        value = tree[name]
        if what in FIELDS:
            value = short(value, what)
        elif what[1:] in FIELDS:
            value = [short(item, what[1:]) for item in value]
        if default is MUST or value != default:
            out[name] = value
    return out


def text_of(d: Tree) -> str:
    """The canonical JSON of a descriptor that was read."""
    return write_json(short(canonical(d), "Descriptor"))


# --- 7: fingerprints -----------------------------------------------------------------------------


def _digest(name: str, parts: Any) -> str:
    return hashlib.sha256(f"{name}:{write_json(parts)}".encode()).hexdigest()


def group_fingerprints(d: Tree, g: Tree) -> dict[str, str]:
    """The three digests of a group of a canonical descriptor."""
    brief = short(g, "Group")
    order = sorted(range(len(g["layers"])), key=lambda i: int(g["layers"][i]))
    params = dict(g["codec"]["params"])
    for name in params:
        if name.startswith("scales."):
            params[name] = [params[name][i] for i in order]
    model = d["model"]
    who = {key: model[key] for key in (["weights"] if model["weights"] else ["name", "revision"])}
    who |= {key: model[key] for key in ("adapter", "kv_share", "num_layers")}
    roles = [
        {
            "dtype": role["dtype"],
            "role": role["role"],
            "shape": {axis: n for axis, n in role["shape"].items() if axis not in "HN"},
        }
        for role in g["roles"]
    ]
    names = {name for place in g["places"] for name in place["pools"]}
    page = {
        "codec": brief.get("codec", {}),
        "endian": d["endian"],
        "roles": brief["roles"],
        "tokens_per_block": g["tokens_per_block"],
        "tokens_per_state": g["tokens_per_state"],
        **({"opaque": g["opaque"]} if g["opaque"] else {}),
    }
    meaning = {
        "codec": {"id": g["codec"]["id"], "params": params},
        "heads": g["owner"]["heads"][2],
        "kind": g["kind"],
        "layers": sorted(g["layers"]),
        "model": who | {"rope": short(model["rope"], "Rope")},
        "roles": roles,
        "tokens_per_state": g["tokens_per_state"],
        "window": g["window"],
    }
    placement = {
        "layers": g["layers"],
        "null_block": g["null_block"],
        "owner": brief.get("owner", {}),
        "places": brief["places"],
        "pools": [short(pool, "Pool") for pool in d["pools"] if pool["id"] in names],
        "table": g["table"],
    }
    parts = {"page": page, "meaning": meaning, "placement": placement}
    return {name: _digest(name, part) for name, part in parts.items()}


def fingerprints(d: Tree) -> dict[str, str]:
    """The three digests of a canonical descriptor."""
    each = [group_fingerprints(d, g) for g in d["groups"]]
    lists = {name: sorted(e[name] for e in each) for name in ("page", "meaning", "placement")}
    pools = [short(pool, "Pool") for pool in d["pools"]]
    placement = {"groups": lists["placement"], "pools": pools}
    return {
        "page": _digest("page", lists["page"]),
        "meaning": _digest("meaning", lists["meaning"]),
        "placement": _digest("placement", placement),
    }


# --- 3 to 5: elements and values -----------------------------------------------------------------


def place_of(g: Tree, role: Tree, layer: int, block: int, index: Index) -> tuple[str, int]:
    """The pool and the first bit of an element (3)."""
    place = g["places"][role["place"]]
    name = place["pools"][layer if len(place["pools"]) > 1 else 0]
    byte = place["offset"] + block * place["block_stride"] + layer * place["layer_stride"]
    bit = 8 * byte + role["base_bits"]
    for axis, div, extent, stride in role["terms"]:
        bit += index[axis] // div % extent * stride
    return name, bit


def places_used(g: Tree) -> list[Tree]:
    """The places of a group that a role is in."""
    return [g["places"][at] for at in sorted({role["place"] for role in g["roles"]})]


def role_of(g: Tree, name: str) -> Tree:
    """A role of a group by its name."""
    return next(role for role in g["roles"] if role["role"] == name)


class Cache:
    """A descriptor and the bytes of its pools."""

    def __init__(self, descriptor: Tree, pools: Mapping[str, bytearray]) -> None:
        """Both are kept, not copied."""
        self.descriptor, self.pools = descriptor, pools

    def get(self, name: str, g: Tree, layer: int, block: int, index: Index) -> int:
        """The raw element of a role."""
        role = role_of(g, name)
        pool, bit = place_of(g, role, layer, block, index)
        bits, shift = int(role["bits"]), bit % 8
        data = self.pools[pool][bit // 8 : (bit + bits + 7) // 8]
        return int.from_bytes(data, "little") >> shift & ((1 << bits) - 1)

    def put(self, name: str, g: Tree, layer: int, block: int, index: Index, element: int) -> None:
        """Write the raw element of a role, and no bit beside it."""
        role = role_of(g, name)
        pool, bit = place_of(g, role, layer, block, index)
        bits, shift = role["bits"], bit % 8
        first, end = bit // 8, (bit + bits + 7) // 8
        beside = int.from_bytes(self.pools[pool][first:end], "little")
        beside &= ~(((1 << bits) - 1) << shift)
        self.pools[pool][first:end] = (beside | element << shift).to_bytes(end - first, "little")

    def value(self, name: str, g: Tree, layer: int, block: int, index: Index) -> float | None:
        """The value of an element under the group's codec (5), None where it has none."""
        if not has_values(g, name):
            return None
        role, scale = role_of(g, name), page_scale(g, name)
        element = self.get(name, g, layer, block, index)
        value = decode(role["dtype"], element)
        if scale:
            at = dict(index)
            if "G" in ROLES[scale]:
                at["G"] = index["D"] // (role["shape"]["D"] // role_of(g, scale)["shape"]["G"])
            factor = self.get(scale, g, layer, block, at)
            if g["codec"]["id"] == "int4_zero_point":
                value, factor = float(element - (factor & 15)), factor & ~15
            value = single(value * decode(role_of(g, scale)["dtype"], factor))
        param = param_scale(g, name, g["layers"][layer])
        return single(value * number(param)) if param else value


def indices(role: Tree) -> Iterator[dict[str, int]]:
    """All indices of a role, the last axis fastest."""
    axes = ROLES[role["role"]]
    for numbers in product(*(range(role["shape"][axis]) for axis in axes)):
        yield dict(zip(axes, numbers, strict=True))
