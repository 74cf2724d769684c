"""Canonical forms, fingerprints, elements and values of `kvabi/1`, from its document alone."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from conformance.abi_from_the_document_fields import AXES, BITS, FIELDS, MUST, ROLES, number
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

# exponent bits, mantissa bits, bias, the largest finite value, what the format has besides numbers
FLOATS: dict[str, tuple[int, int, int, float, str]] = {
    "f32": (8, 23, 127, (2 - 2.0**-23) * 2.0**127, "inf"),
    "f16": (5, 10, 15, 65504.0, "inf"),
    "bf16": (8, 7, 127, (2 - 2.0**-7) * 2.0**127, "inf"),
    "e4m3": (4, 3, 7, 448.0, "7f"),
    "e5m2": (5, 2, 15, 57344.0, "inf"),
    "e4m3fnuz": (4, 3, 8, 240.0, "80"),
    "e5m2fnuz": (5, 2, 16, 57344.0, "80"),
}


def decode(dtype: str, element: int) -> float:
    """The value of an element."""
    bits = BITS[dtype]
    if dtype == "i8":
        return float(element - 256 if element >= 128 else element)
    width, digits, bias, _, special = FLOATS[dtype]
    sign = -1.0 if element >> (bits - 1) else 1.0
    size = element & ((1 << (bits - 1)) - 1)
    exponent, mantissa = size >> digits, size & ((1 << digits) - 1)
    if special == "inf" and exponent == (1 << width) - 1:
        return sign * math.inf if mantissa == 0 else math.nan
    if (special == "7f" and size == 0x7F) or (special == "80" and element == 0x80):
        return math.nan
    mantissa += (1 << digits) if exponent else 0
    return sign * math.ldexp(mantissa, max(exponent, 1) - bias - digits)


def encode(dtype: str, value: float) -> int:
    """The element nearest to a value, ties to even; 8-bit types have no infinities (8)."""
    bits = BITS[dtype]
    if dtype == "i8":
        return 0 if math.isnan(value) else round(min(max(value, -128.0), 127.0)) % 256
    width, digits, bias, largest, special = FLOATS[dtype]
    negative = math.copysign(1.0, value) < 0
    sign = int(negative) << (bits - 1)
    if math.isnan(value):
        quiet = (1 << (bits - 1)) - (1 << (digits - 1))
        return quiet if special == "inf" else int(special, 16)
    size = abs(value)
    units = 0
    if math.isfinite(size) and size:
        unit = max(math.frexp(size)[1] - 1, 1 - bias) - digits
        units = round(math.ldexp(size, -unit))
        size = math.ldexp(units, unit)
    if size > largest:
        if special == "inf" and bits > 8:
            return sign | (((1 << width) - 1) << digits)
        size = largest
    if size == 0:
        return 0 if special == "80" else sign
    exponent = max(math.frexp(size)[1] - 1, 1 - bias)
    units = int(math.ldexp(size, digits - exponent))
    return sign | (units + ((exponent + bias - 1) << digits))


def single(value: float) -> float:
    """Round to a binary32."""
    return decode("f32", encode("f32", value))


def place_of(g: Tree, role: Tree, layer: int, block: int, index: Index) -> tuple[str, int]:
    """The pool and the first byte of an element (3)."""
    place = g["places"][role["place"]]
    name = place["pools"][layer if len(place["pools"]) > 1 else 0]
    byte = place["offset"] + block * place["block_stride"] + layer * place["layer_stride"]
    bit = 8 * byte + role["base_bits"]
    for axis, div, extent, stride in role["terms"]:
        bit += index[axis] // div % extent * stride
    return name, bit // 8


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
        pool, byte = place_of(g, role, layer, block, index)
        return int.from_bytes(self.pools[pool][byte : byte + role["bits"] // 8], "little")

    def put(self, name: str, g: Tree, layer: int, block: int, index: Index, element: int) -> None:
        """Write the raw element of a role."""
        role = role_of(g, name)
        pool, byte = place_of(g, role, layer, block, index)
        size = role["bits"] // 8
        self.pools[pool][byte : byte + size] = element.to_bytes(size, "little")

    def value(self, name: str, g: Tree, layer: int, block: int, index: Index) -> float:
        """The value of an element under the group's codec (5)."""
        plain = decode(role_of(g, name)["dtype"], self.get(name, g, layer, block, index))
        codec = g["codec"]["id"]
        if codec == "fp8_per_tensor":
            return single(plain * number(g["codec"]["params"][f"scales.{name}"][layer]))
        if codec == "per_token_head" and name in "kv":
            return single(plain * decode("f32", self.get(f"{name}_scale", g, layer, block, index)))
        if codec == "fp8_ds_mla_656" and name == "latent":
            at = {"N": index["N"], "G": index["D"] // 128}
            return single(plain * decode("f32", self.get("latent_scale", g, layer, block, at)))
        return plain


def indices(role: Tree) -> Iterator[dict[str, int]]:
    """All indices of a role, the last axis fastest."""
    axes = ROLES[role["role"]]
    for numbers in product(*(range(role["shape"][axis]) for axis in axes)):
        yield dict(zip(axes, numbers, strict=True))
