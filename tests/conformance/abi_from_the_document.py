"""The KV ABI once more, written from `connector/ABI.md` and its vectors alone.

Nothing here is fast or shared with the implementation: a reader that had only the document would
write this. Numbers in comments are the document's sections. The sibling module compares
descriptors and moves blocks.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

Tree = dict[str, Any]
Run = tuple[int, int, tuple[tuple[int, int], ...]]  # first byte, bytes, [(stride, extent)]

MAX_INT = 2**53 - 1
MAX_STEPS = 2**18
AXES = "HNDG"


class RefusedError(Exception):
    """A document that no reader may accept; `path` is the field that is wrong, or empty."""

    def __init__(self, path: str, why: str) -> None:
        """Say where and why."""
        super().__init__(f"{path}: {why}" if path else why)
        self.path = path


def need(holds: object, path: str, why: str) -> None:
    """Refuse unless `holds`."""
    if not holds:
        raise RefusedError(path, why)


# --- 1: JSON and MessagePack ---------------------------------------------------------------------


class Fraction:
    """A number with a point, an exponent or a name, kept until `abi` was looked at."""

    def __init__(self, text: str) -> None:
        """Keep what was read."""
        self.text = text


def _integer(text: str) -> int:
    digits = text.lstrip("-")
    return int(text) if len(digits) <= 16 else (-(10**16) if text[0] == "-" else 10**16)


def _members(pairs: list[tuple[str, Any]]) -> Tree:
    tree: Tree = {}
    for name, value in pairs:
        need(name not in tree, name[:40], "twice in an object")
        tree[name] = value
    return tree


def parse_json(data: bytes) -> Any:
    """Read JSON as strictly as section 1 wants it, depth first of all."""
    need(len(data) <= 1 << 20, "", "more than a MiB")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RefusedError("", "not UTF-8") from error
    depth = 0
    for sign in re.findall(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', text, re.DOTALL):
        depth += (sign in "[{") - (sign in "]}")
        need(depth <= 12, "", "nests deeper than 12")
    try:
        return json.loads(
            text,
            object_pairs_hook=_members,
            parse_float=Fraction,
            parse_constant=Fraction,
            parse_int=_integer,
        )
    except ValueError as error:
        raise RefusedError("", f"not JSON: {error}") from error


class _Twin:
    """A reader of the twin; it knows the one spelling of each value."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        need(count <= len(self.data) - self.at, "", "cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def size(self, width: int, least: int) -> int:
        number = int.from_bytes(self.take(width), "big")
        need(number >= least, "", f"{number} has a shorter form")
        return number

    def value(self, depth: int = 1) -> Any:
        code = self.take(1)[0]
        if code < 0x80:
            return code
        if code < 0x90:
            return self.map(code & 15, depth)
        if code < 0xA0:
            return self.array(code & 15, depth)
        if code < 0xC0:
            return self.text(code & 31)
        forms: dict[int, Callable[[], Any]] = {
            0xC0: lambda: None,
            0xC2: lambda: False,
            0xC3: lambda: True,
            0xCC: lambda: self.size(1, 128),
            0xCD: lambda: self.size(2, 1 << 8),
            0xCE: lambda: self.size(4, 1 << 16),
            0xCF: lambda: self.size(8, 1 << 32),
            0xD9: lambda: self.text(self.size(1, 32)),
            0xDA: lambda: self.text(self.size(2, 1 << 8)),
            0xDB: lambda: self.text(self.size(4, 1 << 16)),
            0xDC: lambda: self.array(self.size(2, 16), depth),
            0xDD: lambda: self.array(self.size(4, 1 << 16), depth),
            0xDE: lambda: self.map(self.size(2, 16), depth),
            0xDF: lambda: self.map(self.size(4, 1 << 16), depth),
        }
        need(code in forms, "", f"the type {code:#x} is not used")
        return forms[code]()

    def text(self, count: int) -> str:
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise RefusedError("", "text is not UTF-8") from error

    def array(self, count: int, depth: int) -> list[Any]:
        need(depth <= 12, "", "nests deeper than 12")
        need(count <= len(self.data) - self.at, "", "cut off")
        return [self.value(depth + 1) for _ in range(count)]

    def map(self, count: int, depth: int) -> Tree:
        need(depth <= 12, "", "nests deeper than 12")
        need(2 * count <= len(self.data) - self.at, "", "cut off")
        tree: Tree = {}
        last = None
        for _ in range(count):
            name = self.value(13)
            need(isinstance(name, str), "", "a key that is not text")
            need(last is None or name > last, str(name)[:40], "a key twice or out of order")
            tree[name] = self.value(depth + 1)
            last = name
        return tree


def parse_twin(data: bytes) -> Any:
    """Read the MessagePack twin."""
    need(len(data) <= 1 << 20, "", "more than a MiB")
    reader = _Twin(data)
    tree = reader.value()
    need(reader.at == len(data), "", "bytes after the end")
    return tree


def write_twin(value: Any) -> bytes:
    """Write a tree as its MessagePack twin."""

    def head(count: int, small: int, limit: int, forms: list[tuple[int, int]]) -> bytes:
        if count < limit:
            return bytes([small + count])
        code, width = next(form for form in forms if count < 1 << 8 * form[1])
        return bytes([code]) + count.to_bytes(width, "big")

    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return head(value, 0, 128, [(0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)])
    if isinstance(value, str):
        data = value.encode()
        return head(len(data), 0xA0, 32, [(0xD9, 1), (0xDA, 2), (0xDB, 4)]) + data
    if isinstance(value, list):
        parts = [write_twin(item) for item in value]
        return head(len(value), 0x90, 16, [(0xDC, 2), (0xDD, 4)]) + b"".join(parts)
    parts = [write_twin(name) + write_twin(value[name]) for name in sorted(value)]
    return head(len(value), 0x80, 16, [(0xDE, 2), (0xDF, 4)]) + b"".join(parts)


def write_json(value: Any) -> str:
    """Write a tree in the one spelling of section 1.1."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


# --- 2: fields -----------------------------------------------------------------------------------

MUST = object()
KINDS = {  # the role that a kind has, and whether its window is free (None), zero or above
    "full": ("k", None),
    "sliding_window": ("k", True),
    "chunked_local": ("k", True),
    "mla": ("latent", None),
    "sliding_window_mla": ("latent", True),
    "cross": ("k", False),
    "recurrent": ("ssm", False),
    "ring": ("", True),
}
ROLES = {"k": "HND", "v": "HND", "k_scale": "HN", "v_scale": "HN", "latent": "ND"}
ROLES |= {"latent_scale": "NG", "rope": "ND", "conv": "ND", "ssm": "ND"}
BITS = {"f32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "e4m3fnuz": 8, "e5m2fnuz": 8}
BITS |= {"i8": 8, "i32": 32, "i64": 64, "u8": 8}
_F, _E = ("f32", "f16", "bf16"), ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")
_Q, _S = ("i8", "e4m3", "e4m3fnuz"), ("f32",)
CODECS: dict[str, list[dict[str, tuple[str, ...]]]] = {
    "none": [{"k": _F, "v": _F}, {"latent": _F, "rope": _F}, {"conv": _F, "ssm": _F}],
    "fp8_per_tensor": [{"k": _E, "v": _E}, {"latent": _E, "rope": _E}],
    "per_token_head": [{"k": _Q, "v": _Q, "k_scale": _S, "v_scale": _S}],
    "fp8_ds_mla_656": [{"latent": ("e4m3",), "latent_scale": _S, "rope": ("bf16",)}],
}
NAMES: dict[str, Any] = {
    "kind": KINDS,
    "memory": ("device", "host", "shared", "file"),
    "state": ("applied", "not_applied", "none", "unknown"),
    "endian": ("little",),
    "role": ROLES,
    "dtype": BITS,
}
FIELDS: dict[str, dict[str, tuple[str, Any]]] = {
    "Descriptor": {
        "abi": ("text", MUST),
        "model": ("Model", MUST),
        "pools": ("[Pool", MUST),
        "groups": ("[Group", MUST),
        "producer": ("Producer", {}),
        "endian": ("text", "little"),
    },
    "Producer": {name: ("text", "") for name in ("engine", "version", "backend", "layout")},
    "Model": {
        "name": ("text", MUST),
        "num_layers": ("int", MUST),
        "rope": ("Rope", MUST),
        "revision": ("text", ""),
        "weights": ("text", ""),
        "adapter": ("text", ""),
        "kv_share": ("[(int,int", []),
    },
    "Rope": {"state": ("text", MUST), "params": ("params", {})},
    "Pool": {
        "id": ("text", MUST),
        "memory": ("text", MUST),
        "num_bytes": ("int", MUST),
        "num_blocks": ("int", MUST),
        "align": ("int", 1),
        "block_bytes": ("int", 0),
    },
    "Group": {
        "id": ("text", MUST),
        "kind": ("text", MUST),
        "layers": ("[int", MUST),
        "tokens_per_block": ("int", MUST),
        "places": ("[Place", MUST),
        "roles": ("[Role", MUST),
        "codec": ("Codec", {}),
        "tokens_per_state": ("(int,int", [1, 1]),
        "window": ("int", 0),
        "table": ("int", 0),
        "null_block": ("int?", None),
        "transferable": ("bool", True),
        "owner": ("Owner", {}),
    },
    "Owner": {
        "heads": ("(int,int,int", [0, 1, 1]),
        "tokens": ("Tokens", {}),
        "replica": ("(int,int", [0, 1]),
    },
    "Tokens": {"rank": ("int", 0), "size": ("int", 1), "interleave": ("int", 1)},
    "Place": {
        "pools": ("[text", MUST),
        "block_stride": ("int", MUST),
        "layer_stride": ("int", 0),
        "offset": ("int", 0),
        "page_bytes": ("int", 0),
    },
    "Role": {
        "role": ("text", MUST),
        "dtype": ("text", MUST),
        "bits": ("int", MUST),
        "shape": ("shape", MUST),
        "terms": ("[(text,int,int,int", []),
        "base_bits": ("int", 0),
        "place": ("int", 0),
    },
    "Codec": {"id": ("text", "none"), "params": ("params", {})},
}
MOST_ITEMS = {"pools": 4096, "groups": 256, "layers": 4096, "places": 16, "roles": 16, "terms": 16}
MOST = {"num_layers": 4096, "num_blocks": 2**32, "tokens_per_block": 2**20, "heads": 2**16}
# 1 and 6 let a pool have 2^53 - 1 bytes; a vector has it that all of its bits have addresses.
MOST["num_bytes"] = 2**50
FLOAT = re.compile(r"f32:[0-9a-f]{8}|f64:[0-9a-f]{16}")


def number(text: str) -> float:
    """The value of a float that is written as text (1.3)."""
    return float(struct.unpack(">f" if text[1] == "3" else ">d", bytes.fromhex(text[4:]))[0])


def _text(value: Any, path: str) -> str:
    need(isinstance(value, str), path, "expected text")
    need(len(value) <= 512, path, "more than 512 characters")
    plain = all(c >= " " and c != "\x7f" and not "\ud800" <= c <= "\udfff" for c in value)
    need(plain, path, "a control character or half of a surrogate pair")
    return str(value)


def _int(value: Any, path: str) -> int:
    need(isinstance(value, int) and not isinstance(value, bool), path, "expected an integer")
    need(0 <= value <= MAX_INT, path, "not within 0 .. 2^53 - 1")
    return int(value)


def _name(value: str, path: str) -> str:
    need(value.isascii(), path, "a key that is not ASCII")  # found from a vector
    return _text(value, path)


def _extension(value: Any, path: str) -> None:
    """What an extension may hold is not told; vectors let -2, null and true pass, not 1.5."""
    need(not isinstance(value, Fraction), path, "expected an integer")
    if isinstance(value, int):
        need(abs(value) <= MAX_INT, path, "beyond 2^53 - 1")
    elif isinstance(value, str):
        _text(value, path)
    elif isinstance(value, list | dict):
        for key in value if isinstance(value, dict) else range(len(value)):
            _extension(value[key], f"{path}[{str(key)[:40]}]")


def _read(kind: str, value: Any, path: str) -> Any:
    """Read a value of a kind with all of its defaults put in."""
    last = path.rsplit(".", 1)[-1].split("[")[0]
    if kind == "text":
        text = _text(value, path)
        need(last not in NAMES or text in NAMES[last], path, f"the name {text[:40]!r} is unknown")
        return text
    if kind == "int" or (kind == "int?" and value is not None):
        need(_int(value, path) <= MOST.get(last, MAX_INT), path, f"above {MOST.get(last)}")
        return value
    if kind == "int?":
        return None
    if kind == "bool":
        need(isinstance(value, bool), path, "expected true or false")
        return value
    if kind[0] in "[(":
        need(isinstance(value, list), path, "expected a list")
        inner = kind[1:].split(",") if kind[0] == "(" else [kind[1:]] * len(value)
        need(len(value) == len(inner), path, f"expected {len(inner)} items")
        need(kind[0] == "(" or len(value) <= MOST_ITEMS.get(last, 4096), path, "too many")
        pairs = enumerate(zip(inner, value, strict=True))
        return [_read(what, item, f"{path}[{i}]") for i, (what, item) in pairs]
    need(isinstance(value, dict), path, "expected an object")
    names = {name: f"{path}.{name[:40]}".lstrip(".") for name in value}
    for name in value:
        _name(name, names[name])
    if kind == "shape":
        for name in value:
            need(name in AXES, names[name], "no axis")
            need(1 <= _int(value[name], names[name]) <= 2**20, names[name], "not in 1 .. 2^20")
        return dict(value)
    if kind == "params":
        need(len(value) <= 64, path, "more than 64 parameters")
        return {name: _param(value[name], names[name]) for name in value}
    fields = FIELDS[kind]
    for name in value:
        if name.startswith("x_"):
            _extension(value[name], names[name])
        else:
            need(name in fields, names[name], "a field that is not known")
    tree = {}
    for name, (what, default) in fields.items():
        where = f"{path}.{name}".lstrip(".")
        need(name in value or default is not MUST, where, "is not there")
        tree[name] = _read(what, value.get(name, default), where)
    return tree


def _param(value: Any, path: str) -> Any:
    if isinstance(value, list):
        need(len(value) <= 8192, path, "more than 8192 items")
        need(not any(isinstance(item, list) for item in value), path, "a list in a list")
        return [_param(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, str):
        return _int(value, path)
    if _text(value, path)[:4] in ("f32:", "f64:"):
        need(FLOAT.fullmatch(value), path, "expected lower-case hex digits of a float")
        need(math.isfinite(number(value)), path, "not finite")
    return value


def read(data: bytes, twin: bool = False) -> Tree:
    """Read a descriptor and refuse it unless all that sections 1 to 6 ask for holds."""
    tree = parse_twin(data) if twin else parse_json(data)
    need(isinstance(tree, dict), "", "expected an object")
    need(tree.get("abi") == "kvabi/1", "abi", "expected kvabi/1")
    descriptor: Tree = _read("Descriptor", tree, "")
    _check_model(descriptor)
    for i, group in enumerate(descriptor["groups"]):
        _check_group(descriptor, group, f"groups[{i}]")
    _check_layers_and_tables(descriptor)
    _check_bytes(descriptor)
    return descriptor


# --- 6: what must hold ---------------------------------------------------------------------------


def _check_ids(items: list[Tree], path: str) -> None:
    need(items, path, "expected one or more")
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
        need(align and not align & (align - 1), f"pools[{i}].align", "not a power of two")


def _check_group(d: Tree, g: Tree, path: str) -> None:
    role_of_kind, has_window = KINDS[g["kind"]]
    need(has_window is None or has_window == (g["window"] > 0), f"{path}.window", "not of the kind")
    need(g["kind"] != "ring" or g["window"] <= g["tokens_per_block"], f"{path}.window", "too large")
    readers = [reader for reader, _ in d["model"]["kv_share"]]
    need(g["layers"], f"{path}.layers", "expected one or more")
    for i, layer in enumerate(g["layers"]):
        where = f"{path}.layers[{i}]"
        need(layer < d["model"]["num_layers"], where, "no layer of the model")
        need(layer not in g["layers"][:i], where, "is there twice")
        need(layer not in readers, where, "reads another layer's")
    tokens, states = g["tokens_per_state"]
    where = f"{path}.tokens_per_state"
    need(tokens and states and math.gcd(tokens, states) == 1, where, "not in lowest terms")
    need(g["tokens_per_block"] and g["tokens_per_block"] * states % tokens == 0, where, "not whole")
    if g["kind"] == "recurrent":
        need((tokens, states) == (g["tokens_per_block"], 1), where, "not one state for a block")
    extents = {"N": g["tokens_per_block"] * states // tokens}

    first, end, heads = g["owner"]["heads"]
    need(first < end <= heads, f"{path}.owner.heads", "no heads of the model")
    extents["H"] = end - first
    ordinal, count = g["owner"]["replica"]
    need(ordinal < count, f"{path}.owner.replica", "no such replica")
    cut, where = g["owner"]["tokens"], f"{path}.owner.tokens"
    need(cut["rank"] < cut["size"], f"{where}.rank", "no such rank")
    need(cut["interleave"], f"{where}.interleave", "is zero")
    if cut["size"] > 1:
        need((tokens, states) == (1, 1), where, "needs a state for each token")
        small, large = sorted((cut["interleave"], g["tokens_per_block"]))
        need(large % small == 0, f"{where}.interleave", "does not divide")

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
    need(role_of_kind in ("", *names), f"{path}.roles", f"needs {role_of_kind}")
    axis_h = any("H" in ROLES[name] for name in names)
    need(axis_h or g["owner"]["heads"] == [0, 1, 1], f"{path}.owner.heads", "no axis H")
    _check_codec(g, names, path)


def _check_role(g: Tree, role: Tree, extents: Mapping[str, int], path: str) -> None:
    need(role["bits"] == BITS[role["dtype"]], f"{path}.bits", "not of the dtype")
    need(set(role["shape"]) == set(ROLES[role["role"]]), f"{path}.shape", "other axes")
    for axis, extent in role["shape"].items():
        need(extents.get(axis, extent) == extent, f"{path}.shape.{axis}", "not what the group has")
    need(role["place"] < len(g["places"]), f"{path}.place", "no such place")
    step = 8  # every dtype of this version has whole bytes
    need(role["base_bits"] % step == 0, f"{path}.base_bits", "inside of a byte")
    ends = dict.fromkeys(role["shape"], 1)
    order = sorted(range(len(role["terms"])), key=lambda i: int(role["terms"][i][1]))
    for i in order:
        axis, div, extent, stride = role["terms"][i]
        where = f"{path}.terms[{i}]"
        need(axis in AXES and axis in ends, where, "no axis of the role")
        need(1 <= extent <= role["shape"][axis], where, "no such extent")
        need(div == ends[axis], where, f"expected div {ends[axis]}")
        need(stride % step == 0, where, "a stride that ends inside of a byte")
        ends[axis] *= extent
    for axis, extent in role["shape"].items():
        need(ends[axis] == extent, f"{path}.terms", f"the digits of {axis} count to {ends[axis]}")


def _check_codec(g: Tree, names: list[str], path: str) -> None:
    codec, params = g["codec"]["id"], g["codec"]["params"]
    need(codec in CODECS, f"{path}.codec.id", "the codec is unknown")
    fits = [roles for roles in CODECS[codec] if set(roles) == set(names)]
    need(fits, f"{path}.roles", f"codec {codec} has other roles")
    for i, role in enumerate(g["roles"]):
        need(role["dtype"] in fits[0][role["role"]], f"{path}.roles[{i}].dtype", "not of the codec")
    if codec == "fp8_ds_mla_656":
        shapes = {role["role"]: role["shape"] for role in g["roles"]}
        whole = shapes["latent"]["D"] == 128 * shapes["latent_scale"]["G"]
        need(whole, f"{path}.roles", "expected a scale for each 128 elements")
    known = [f"scales.{name}" for name in names] if codec == "fp8_per_tensor" else []
    where = f"{path}.codec.params"
    for name in params:
        need(name in known, f"{where}.{name}", "a parameter that is not known")
    for name in known:
        scales = params.get(name)
        right = isinstance(scales, list) and len(scales) == len(g["layers"])
        need(right, f"{where}.{name}", "expected a scale for each layer")
        for i, scale in enumerate(scales or []):
            single = isinstance(scale, str) and FLOAT.fullmatch(scale) and scale[1] == "3"
            need(single and number(scale) > 0, f"{where}.{name}[{i}]", "expected f32:, above zero")


def _check_layers_and_tables(d: Tree) -> None:
    held: dict[tuple[bool, int, str], int] = {}
    tables: dict[int, Tree] = {}
    blocks: dict[int, int] = {}
    of_pool = {pool["id"]: pool["num_blocks"] for pool in d["pools"]}
    for i, g in enumerate(d["groups"]):
        for layer, role in product(g["layers"], g["roles"]):
            key = (g["transferable"], layer, role["role"])
            need(key not in held, f"groups[{i}].layers", f"layer {layer} is in another group")
            held[key] = i
        same = {key: g[key] for key in ("tokens_per_block", "null_block")}
        same["tokens"] = g["owner"]["tokens"]
        need(tables.setdefault(g["table"], same) == same, f"groups[{i}].table", "is read two ways")
        for name in {name for place in g["places"] for name in place["pools"]}:
            count = blocks.setdefault(g["table"], of_pool[name])
            need(count == of_pool[name], f"groups[{i}].table", "pools of unlike num_blocks")
            need(g["null_block"] is None or g["null_block"] < count, f"groups[{i}].null_block", "-")


def meet(runs: list[Run]) -> bool:
    """Whether two of the runs, or of one run's repetitions, have a byte in common."""
    steps, queue = 0, [runs]
    while queue:
        cluster: list[Run] = []
        last = -1
        clusters = []
        for run in sorted(queue.pop()):
            if run[0] >= last:
                cluster = []
                clusters.append(cluster)
            cluster.append(run)
            last = max(last, _end(run))
        for cluster in clusters:
            if len(cluster) == 1 and (not cluster[0][2] or _nested(cluster[0])):
                continue
            if not any(digits for _, _, digits in cluster):
                return True
            outer = {digits[0] if digits else None for _, _, digits in cluster}
            inner = [(base, size, digits[1:]) for base, size, digits in cluster]
            first = cluster[0][0]
            digit = next(iter(outer))
            if len(outer) == 1 and digit and max(map(_end, inner)) - first <= digit[0]:
                queue.append(inner)
                continue
            wide = max(cluster, key=lambda run: run[2][0] if run[2] else (-1, 0))
            base, size, ((stride, extent), *rest) = wide
            steps += extent + len(cluster)
            need(steps <= MAX_STEPS, "", "interleaves too finely")
            cluster.remove(wide)
            cluster += [(base + i * stride, size, tuple(rest)) for i in range(extent)]
            queue.append(cluster)
    return False


def _end(run: Run) -> int:
    return run[0] + run[1] + sum(stride * (extent - 1) for stride, extent in run[2])


def _nested(run: Run) -> bool:
    span = run[1]
    for stride, extent in reversed(run[2]):
        if stride < span:
            return False
        span += stride * (extent - 1)
    return True


def _run(base: int, size: int, digits: list[tuple[int, int]]) -> Run:
    """A run with its digits from the widest stride down, and those that continue it merged."""
    left = sorted((digit for digit in digits if digit[1] > 1), reverse=True)
    while left and left[-1][0] == size:
        size *= left.pop()[1]
    return base, size, tuple(left)


class Claim(NamedTuple):
    """What a role, or a whole page, has of a pool: its runs in block 0, and a step to the next."""

    table: int
    stride: int
    block: Run
    path: str

    def blocks(self, first: int, end: int) -> Run:
        """The runs of the blocks from `first` to `end`."""
        base, size, digits = self.block
        return _run(base + first * self.stride, size, [*digits, (self.stride, end - first)])


def _check_bytes(d: Tree) -> None:
    """Rules 6 to 8, in bytes: no dtype of this version is smaller."""
    pools = {pool["id"]: (f"pools[{i}]", pool) for i, pool in enumerate(d["pools"])}
    claims: dict[str, list[Claim]] = {}
    for i, g in enumerate(d["groups"]):
        for at, place in enumerate(g["places"]):
            in_page = []
            for j, role in enumerate(g["roles"]):
                if role["place"] != at:
                    continue
                path = f"groups[{i}].roles[{j}]"
                digits = [(t[3] // 8, t[2]) for t in role["terms"]]
                in_page.append((_run(role["base_bits"] // 8, role["bits"] // 8, digits), path))
            shown = in_page
            if place["page_bytes"] and in_page:
                for run, path in in_page:
                    need(_end(run) <= place["page_bytes"], path, "ends beyond its page")
                need(not meet([run for run, _ in in_page]), f"groups[{i}].roles", "elements meet")
                shown = [((0, place["page_bytes"], ()), f"groups[{i}].places[{at}]")]
            for position, layer in product(range(len(place["pools"])), shown):
                (base, size, page_digits), path = layer
                digits = list(page_digits)
                if len(place["pools"]) == 1:
                    digits.append((place["layer_stride"], len(g["layers"])))
                where, pool = pools[place["pools"][position]]
                stride, own = place["block_stride"], pool["block_bytes"]
                block = _run(place["offset"] + base, size, digits)
                claim = Claim(g["table"], stride, block, path)
                claims.setdefault(place["pools"][position], []).append(claim)
                need(own in (0, stride), path, f"block_stride is not {where}.block_bytes")
                need(not own or _end(block) <= own, path, "beyond the block that owns it")
                end = _end(block) + stride * max(0, pool["num_blocks"] - 1)
                need(end <= 2**50, path, "beyond the addresses of 53 bits")
                need(end <= pool["num_bytes"], path, f"ends at byte {end} of {where}")
    for where, pool in pools.values():
        need(pool["block_bytes"] * pool["num_blocks"] <= pool["num_bytes"], where, "block_bytes")
        _check_pool(pool["num_blocks"], claims.get(pool["id"], []))


def _check_pool(count: int, claims: list[Claim]) -> None:
    """Rule 7 in one pool of `count` blocks."""
    for table in {claim.table for claim in claims}:
        own = [claim for claim in claims if claim.table == table]
        need(not meet([c.blocks(0, count) for c in own]), own[-1].path, "elements or pages meet")
    for a, b in product(claims, claims):
        if a.table == b.table:
            continue
        if a.stride != b.stride:
            meets = meet([a.blocks(0, count), b.blocks(0, count)])
        else:
            meets = count > 1 and meet([a.block, b.blocks(1, count)])
        need(not meets, a.path, f"shares bytes with {b.path}")
