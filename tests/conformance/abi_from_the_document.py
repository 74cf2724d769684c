"""The KV ABI once more, written from `connector/ABI.md` and its vectors alone.

Nothing here is fast or shared with the implementation: a reader that had only the document would
write this. Numbers in comments are the document's sections. This module reads a descriptor and says
whether it holds (6); its siblings spell, decode, compare and move.
"""

import math
import re
from collections.abc import Mapping
from itertools import product
from typing import Any

from conformance.abi_from_the_document_bytes import check_bytes
from conformance.abi_from_the_document_codecs import check_codec
from conformance.abi_from_the_document_fields import AXES, BITS, KINDS, ROLES, read_fields
from conformance.abi_from_the_document_spelling import Tree, need, parse_json, parse_twin
from conformance.abi_from_the_document_values import plain_tokens


def read(data: bytes, twin: bool = False) -> Tree:
    """Read a descriptor and refuse it unless all that sections 1 to 6 ask for holds."""
    tree = parse_twin(data) if twin else parse_json(data)
    need(isinstance(tree, dict), "", "expected an object")
    need(tree.get("abi") == "kvabi/1", "abi", "expected kvabi/1")
    descriptor: Tree = read_fields("Descriptor", tree, "")
    _check_model(descriptor)
    for i, group in enumerate(descriptor["groups"]):
        _check_group(descriptor, group, f"groups[{i}]")
    _check_layers_and_tables(descriptor)
    check_bytes(descriptor)
    return descriptor


# --- 6: what must hold ---------------------------------------------------------------------------


def _check_ids(items: list[Tree], path: str) -> None:
    for i, item in enumerate(items):
        need(item["id"], f"{path}[{i}].id", "is empty")
        need(item["id"] not in [x["id"] for x in items[:i]], f"{path}[{i}].id", "is there twice")


def _check_model(d: Tree) -> None:
    model = d["model"]
    need(re.fullmatch(r"(sha256:[0-9a-f]{64})?", model["weights"]), "model.weights", "not a digest")
    rope = model["rope"]
    need(rope["state"] != "none" or not rope["params"], "model.rope.params", "not with state none")
    readers = [reader for reader, _ in model["kv_share"]]
    for i, (reader, other) in enumerate(model["kv_share"]):
        path = f"model.kv_share[{i}]"
        need(max(reader, other) < model["num_layers"], path, "no layer of the model")
        need(other not in readers and readers.count(reader) == 1, path, "reads one that reads")
    _check_ids(d["pools"], "pools")
    _check_ids(d["groups"], "groups")
    for i, pool in enumerate(d["pools"]):
        align = pool["align"]
        need(align > 0 and not align & (align - 1), f"pools[{i}].align", "not a power of two")


def _check_group(d: Tree, g: Tree, path: str) -> None:
    roles_of_kind, has_window = KINDS[g["kind"]]
    need(has_window is None or has_window == (g["window"] > 0), f"{path}.window", "not of the kind")
    need(g["kind"] != "ring" or g["window"] <= g["tokens_per_block"], f"{path}.window", "too large")
    readers = [reader for reader, _ in d["model"]["kv_share"]]
    for i, layer in enumerate(g["layers"]):
        where = f"{path}.layers[{i}]"
        need(layer < d["model"]["num_layers"], where, "no layer of the model")
        need(layer not in g["layers"][:i], where, "is there twice")
        need(layer not in readers, where, "reads another layer's")
    tokens, states = g["tokens_per_state"]
    where = f"{path}.tokens_per_state"
    need(math.gcd(tokens, states) == 1, where, "not in lowest terms")
    need(g["tokens_per_block"] * states % tokens == 0, where, "not whole")
    if g["kind"] == "recurrent":
        need((tokens, states) == (g["tokens_per_block"], 1), where, "not one state for a block")
    _check_owner(g, path)
    first, end, _ = g["owner"]["heads"]
    extents = {"N": g["tokens_per_block"] * states // tokens, "H": end - first}

    for i, place in enumerate(g["places"]):
        where = f"{path}.places[{i}]"
        for name in place["pools"]:
            need(name in [pool["id"] for pool in d["pools"]], f"{where}.pools", f"no {name!r}")
        need(len(place["pools"]) in (1, len(g["layers"])), f"{where}.pools", "not 1 or 1 per layer")
        if len(place["pools"]) > 1:
            need(place["layer_stride"] == 0, f"{where}.layer_stride", "not with a pool per layer")

    names = [role["role"] for role in g["roles"]]
    for i, role in enumerate(g["roles"]):
        need(role["role"] not in names[:i], f"{path}.roles[{i}].role", "is there twice")
        _check_role(g, role, extents, f"{path}.roles[{i}]")
    right = not roles_of_kind or {"page", *roles_of_kind} & set(names)
    need(right, f"{path}.roles", f"the kind has one of {roles_of_kind}")
    axis_h = any("H" in ROLES[name] for name in names) or "page" in names
    need(axis_h or g["owner"]["heads"] == [0, 1, 1], f"{path}.owner.heads", "no axis H")
    check_codec(g, path)


def _check_owner(g: Tree, path: str) -> None:
    first, end, heads = g["owner"]["heads"]
    need(first < end <= heads, f"{path}.owner.heads", "no heads of the model")
    ordinal, count = g["owner"]["replica"]
    need(ordinal < count, f"{path}.owner.replica", "no such replica")
    cut, where = g["owner"]["tokens"], f"{path}.owner.tokens"
    need(cut["rank"] < cut["size"], f"{where}.rank", "no such rank")
    if cut["size"] > 1:
        need(g["kind"] not in ("ring", "recurrent"), where, "one rank has it whole")
        need(g["tokens_per_state"] == [1, 1], where, "needs a state for each token")
        small, large = sorted((cut["interleave"], g["tokens_per_block"]))
        need(large % small == 0, f"{where}.interleave", "does not divide")


def _check_role(g: Tree, role: Tree, extents: Mapping[str, int], path: str) -> None:
    need(role["bits"] == BITS[role["dtype"]], f"{path}.bits", "not of the dtype")
    need(set(role["shape"]) == set(ROLES[role["role"]]), f"{path}.shape", "other axes")
    for axis, extent in role["shape"].items():
        need(extents.get(axis, extent) == extent, f"{path}.shape.{axis}", "not what the group has")
    need(role["place"] < len(g["places"]), f"{path}.place", "no such place")
    unit = min(8, role["bits"])
    need(role["base_bits"] % unit == 0, f"{path}.base_bits", f"not a multiple of {unit}")
    ends = dict.fromkeys(role["shape"], 1)
    for i, (axis, div, extent, stride) in sorted(
        enumerate(role["terms"]), key=lambda item: (item[1][1], item[1][2])
    ):
        where = f"{path}.terms[{i}]"
        need(axis in AXES and axis in ends, where, "no axis of the role")
        need(1 <= extent <= role["shape"][axis], where, "no such extent")
        need(div == ends[axis], where, f"expected div {ends[axis]}")
        need(stride % unit == 0, where, f"a stride that is not a multiple of {unit}")
        ends[axis] *= extent
    for axis, extent in role["shape"].items():
        need(ends[axis] == extent, f"{path}.terms", f"the digits of {axis} count to {ends[axis]}")


def _check_layers_and_tables(d: Tree) -> None:
    held: set[tuple[Any, ...]] = set()
    tables: dict[int, Tree] = {}
    blocks: dict[int, int] = {}
    of_pool = {pool["id"]: pool["num_blocks"] for pool in d["pools"]}
    for i, g in enumerate(d["groups"]):
        for layer, role in product(g["layers"], g["roles"]):
            own = ("cross", "ring", "sliding_window_mla")
            apart = g["kind"] if g["kind"] in own else ""
            text = g["opaque"] if role["role"] == "page" else ""
            key = (g["transferable"], apart, layer, role["role"], text)
            need(key not in held, f"groups[{i}].layers", f"layer {layer} is in another group")
            held.add(key)
        same = {key: g[key] for key in ("tokens_per_block", "null_block")}
        same["tokens"] = plain_tokens(g)
        need(tables.setdefault(g["table"], same) == same, f"groups[{i}].table", "is read two ways")
        used = {role["place"] for role in g["roles"]}
        for name in {name for at in used for name in g["places"][at]["pools"]}:
            count = blocks.setdefault(g["table"], of_pool[name])
            need(count == of_pool[name], f"groups[{i}].table", "pools of unlike num_blocks")
            need(g["null_block"] is None or g["null_block"] < count, f"groups[{i}].null_block", "-")
