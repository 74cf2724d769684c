"""What the wire protocol needs of a descriptor: `connector/ABI.md`, 1.1 and 2, and a part of 8.

Names and types of fields are checked, and not all that section 6 there asks for. The comparison
knows no conversion as lossless but those to `f32`; whoever needs more gives a `Judge` of their own.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from conformance.wire_from_the_document_packing import need, refuse, unpack

Tree = dict[str, Any]
# Of the holder's and the reader's canonical descriptors: a verdict, or `refused` and the field.
Judge = Callable[[Tree, Tree], tuple[str, str]]
REQUIRED: Final = object()

# Section 2: a type, and a default where there is one. `{X}` is an object, `[X]` a list of them.
FIELDS: Final[dict[str, dict[str, tuple[Any, Any]]]] = {
    "Descriptor": {
        "abi": (str, REQUIRED),
        "model": ("{Model}", REQUIRED),
        "pools": ("[Pool]", REQUIRED),
        "groups": ("[Group]", REQUIRED),
        "producer": ("{Producer}", {}),
        "endian": (str, "little"),
    },
    "Producer": {name: (str, "") for name in ("engine", "version", "backend", "layout")},
    "Model": {
        "name": (str, REQUIRED),
        "num_layers": (int, REQUIRED),
        "rope": ("{Rope}", REQUIRED),
        "revision": (str, ""),
        "weights": (str, ""),
        "adapter": (str, ""),
        "kv_share": (list, []),
    },
    "Rope": {"state": (str, REQUIRED), "params": (dict, {})},
    "Pool": {
        "id": (str, REQUIRED),
        "memory": (str, REQUIRED),
        "num_bytes": (int, REQUIRED),
        "num_blocks": (int, REQUIRED),
        "align": (int, 1),
        "block_bytes": (int, 0),
    },
    "Group": {
        "id": (str, REQUIRED),
        "kind": (str, REQUIRED),
        "layers": (list, REQUIRED),
        "tokens_per_block": (int, REQUIRED),
        "places": ("[Place]", REQUIRED),
        "roles": ("[Role]", REQUIRED),
        "codec": ("{Codec}", {}),
        "tokens_per_state": (list, [1, 1]),
        "window": (int, 0),
        "table": (int, 0),
        "null_block": ((int, type(None)), None),
        "transferable": (bool, True),
        "owner": ("{Owner}", {}),
        "opaque": (str, ""),
    },
    "Owner": {"heads": (list, [0, 1, 1]), "tokens": ("{Tokens}", {}), "replica": (list, [0, 1])},
    "Tokens": {"rank": (int, 0), "size": (int, 1), "interleave": (int, 1)},
    "Place": {
        "pools": (list, REQUIRED),
        "block_stride": (int, REQUIRED),
        "layer_stride": (int, 0),
        "offset": (int, 0),
        "page_bytes": (int, 0),
    },
    "Role": {
        "role": (str, REQUIRED),
        "dtype": (str, REQUIRED),
        "bits": (int, REQUIRED),
        "shape": (dict, REQUIRED),
        "terms": (list, []),
        "base_bits": (int, 0),
        "place": (int, 0),
    },
    "Codec": {"id": (str, "none"), "params": (dict, {})},
}


def read_descriptor(twin: bytes) -> Tree:
    """Read a MessagePack twin: canonical, with every default in its place."""
    given = unpack(twin)
    need(isinstance(given, dict), "", "expected an object")
    need(given.get("abi") == "kvabi/1", "abi", "expected kvabi/1")
    descriptor = _read("Descriptor", given, "")
    descriptor["pools"].sort(key=lambda pool: pool["id"])
    descriptor["groups"].sort(key=lambda group: (group["table"], group["id"]))
    names = {pool["id"] for pool in descriptor["pools"]}
    for i, group in enumerate(descriptor["groups"]):
        _canonical_group(group, f"groups[{i}]", names)
    return descriptor


def _read(kind: str, given: Any, path: str) -> Tree:
    need(isinstance(given, dict), path, "expected an object")
    dot = f"{path}." if path else ""
    for name in given:
        if name not in FIELDS[kind] and not name.startswith("x_"):
            refuse(dot + name, "no such field")
    found: Tree = {}
    for name, (wanted, default) in FIELDS[kind].items():
        need(name in given or default is not REQUIRED, dot + name, "is missing")
        value = given.get(name, default)
        if isinstance(wanted, str) and wanted.startswith("["):
            need(isinstance(value, list) and value, dot + name, "expected a list")
            inner = enumerate(value)
            value = [_read(wanted[1:-1], item, f"{dot}{name}[{i}]") for i, item in inner]
        elif isinstance(wanted, str):
            value = _read(wanted[1:-1], value, dot + name)
        else:
            is_flag = isinstance(value, bool) and wanted is not bool
            need(isinstance(value, wanted) and not is_flag, dot + name, "another type")
        found[name] = value
    return found


def _canonical_group(group: Tree, path: str, pools: set[str]) -> None:
    """Sort roles and number places by them (1.1); a digit in two parts addresses the same bits."""
    group["roles"].sort(key=lambda role: role["role"])
    places: list[Tree] = []
    for role in group["roles"]:
        need(role["place"] < len(group["places"]), f"{path}.roles", "no such place")
        place = dict(group["places"][role["place"]])
        if len(group["layers"]) == 1:
            place["layer_stride"] = 0
        need(len(place["pools"]) in (1, len(group["layers"])), f"{path}.places", "a pool for each")
        need(set(place["pools"]) <= pools, f"{path}.places", "no such pool")
        if place not in places:
            places.append(place)
        role["place"] = places.index(place)
        role["terms"] = _canonical_terms(role["terms"])
    group["places"] = places


def _canonical_terms(terms: list[list[Any]]) -> list[list[Any]]:
    merged: list[list[Any]] = []
    for axis, div, extent, stride in sorted(terms, key=lambda t: ("HNDG".index(t[0]), t[1])):
        last = merged[-1] if merged else None
        if extent == 1:
            continue
        if last and [axis, div, stride] == [last[0], last[1] * last[2], last[3] * last[2]]:
            last[2] *= extent
        else:
            merged.append([axis, div, extent, stride])
    return merged


# --- 8: comparing --------------------------------------------------------------------------------

_SCALES: Final = {f"{x}_scale" for x in ("k", "v", "k_group", "v_group", "latent", "index_k")}
_VERDICTS: Final = ("identical", "lossless", "lossy")


def judge(source: Tree, destination: Tree) -> tuple[str, str]:
    """Compare from the holder's blocks to the reader's, as far as this module goes."""
    path = _difference_of_models(source["model"], destination["model"])
    if path:
        return "refused", f"model.{path}"
    wanted = [(i, group) for i, group in enumerate(destination["groups"]) if group["transferable"]]
    verdicts = []
    for i, group in wanted:
        for other in source["groups"]:
            if not (other["transferable"] and _meet(other, group)):
                continue
            path = _first_difference(_of_a_group(other), _of_a_group(group))
            if path:
                return "refused", f"groups[{i}].{path}"
            verdicts.append(_move(other, group))
    if wanted and not verdicts:
        return "refused", f"groups[{wanted[0][0]}].layers"
    return _VERDICTS[max(verdicts, default=0)], ""


def _first_difference(left: Tree, right: Tree) -> str:
    return next((x for x in {**left, **right} if left.get(x) != right.get(x)), "")


def _difference_of_models(source: Tree, destination: Tree) -> str:
    if source["weights"] and destination["weights"]:
        named: tuple[str, ...] = ("weights",)
    elif source["revision"] or destination["revision"]:
        named = ("name", "revision")
    else:
        return "weights"
    left, right = (_of_a_model(model, named) for model in (source, destination))
    is_known = source["rope"]["state"] != "unknown"
    return _first_difference(left, right) or ("" if is_known else "rope.state")


def _of_a_model(model: Tree, named: tuple[str, ...]) -> Tree:
    rope = {f"rope.params.{k}": _number(v) for k, v in sorted(model["rope"]["params"].items())}
    found = {name: model[name] for name in (*named, "adapter")}
    found |= {"rope.state": model["rope"]["state"], **rope}
    return found | {"num_layers": model["num_layers"], "kv_share": sorted(model["kv_share"])}


def _number(value: Any) -> Any:
    if isinstance(value, str) and value[:4] in ("f32:", "f64:"):
        return struct.unpack(">f" if value[1] == "3" else ">d", bytes.fromhex(value[4:]))[0]
    return [_number(item) for item in value] if isinstance(value, list) else value


def _value_roles(group: Tree) -> dict[str, Any]:
    return {r["role"]: r["shape"].get("D") for r in group["roles"] if r["role"] not in _SCALES}


def _of_a_group(group: Tree) -> Tree:
    names = ("opaque", "kind", "window", "tokens_per_state")
    heads = {"owner.heads": group["owner"]["heads"][2], "roles": _value_roles(group)}
    return {name: group[name] for name in names} | heads


def _meet(source: Tree, destination: Tree) -> bool:
    ours, theirs = (group["owner"]["heads"] for group in (source, destination))
    return bool(
        set(source["layers"]) & set(destination["layers"])
        and set(_value_roles(source)) & set(_value_roles(destination))
        and max(ours[0], theirs[0]) < min(ours[1], theirs[1])
    )


def _move(source: Tree, destination: Tree) -> int:
    page = ("codec", "roles", "tokens_per_block")
    owner = ("heads", "tokens")
    if all(source[name] == destination[name] for name in page) and all(
        source["owner"][name] == destination["owner"][name] for name in owner
    ):
        return 0
    types = [
        (group["codec"], {r["role"]: (r["dtype"], r["shape"].get("G")) for r in group["roles"]})
        for group in (source, destination)
    ]
    is_wide = all(role["dtype"] == "f32" for role in destination["roles"])
    is_plain = destination["codec"]["id"] == "none"
    return 1 if types[0] == types[1] or (is_wide and is_plain) else 2
