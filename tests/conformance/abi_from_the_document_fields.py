"""The fields of `kvabi/1`, their types, defaults and limits, from its document alone (1 to 2)."""

import math
import re
import struct
from typing import Any

from conformance.abi_from_the_document_spelling import Fraction, Tree, need

MAX_INT = 2**53 - 1
AXES = "HNDG"

MUST = object()
_KEYS = ("k", "k_code", "index_k")
PARTS_BY_HEAD = ("ssm_h", "conv_q", "conv_k", "conv_v", "conv_x", "conv_b", "conv_c")
KINDS: dict[str, tuple[tuple[str, ...], bool | None]] = {
    # the roles of which a kind has one (any of them without), and whether its window is above 0,
    # 0 or either (None)
    "full": (_KEYS, None),
    "sliding_window": ((*_KEYS, "state_kv", "index_state_kv"), True),
    "chunked_local": (_KEYS, True),
    "mla": (("latent",), False),
    "sliding_window_mla": (("latent",), True),
    "cross": (_KEYS, False),
    "recurrent": (("ssm", *PARTS_BY_HEAD), False),
    "ring": ((), True),
}
ROLES = {"k": "HND", "v": "HND", "k_scale": "HN", "v_scale": "HN", "latent": "ND"}
ROLES |= {"latent_scale": "NG", "rope": "ND", "k_group_scale": "HNG", "v_group_scale": "HNG"}
ROLES |= {"k_code": "HND", "v_code": "HND", "k_norm": "HN", "v_zero": "HN"}
ROLES |= {"index_k": "ND", "index_k_scale": "NG", "position": "ND"}
ROLES |= {"state_kv": "ND", "state_score": "ND", "conv": "ND", "ssm": "ND", "page": "D"}
ROLES |= {"index_state_kv": "ND", "index_state_score": "ND"}
ROLES |= dict.fromkeys(PARTS_BY_HEAD, "HND")
BITS = {"f32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "e4m3fnuz": 8, "e5m2fnuz": 8}
BITS |= {"e2m1": 4, "ue8m0": 8, "i8": 8, "i64": 64, "u4": 4, "u8": 8}
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
        "opaque": ("text", ""),
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
AT_LEAST_ONE = ["num_layers", "num_bytes", "num_blocks", "tokens_per_block", "tokens_per_state"]
AT_LEAST_ONE += ["size", "interleave"]
MOST = {"num_layers": 4096, "num_blocks": 2**32, "num_bytes": 2**50 - 1}
MOST |= {"tokens_per_block": 2**20, "interleave": 2**20}
MOST |= {"heads": 2**16, "replica": 2**16, "size": 2**16}
FLOAT = re.compile(r"f32:[0-9a-f]{8}|f64:[0-9a-f]{16}")


def number(text: str) -> float:
    """The value of a float that is written as text (1.3)."""
    return float(struct.unpack(">f" if text[1] == "3" else ">d", bytes.fromhex(text[4:]))[0])


def _text(value: Any, path: str) -> str:
    need(isinstance(value, str), path, "expected text")
    need(len(value) <= 512, path, "more than 512 characters")
    plain = not re.search(r"[\0-\x1f\x7f-\x9f\ud800-\udfff]", value)
    need(plain, path, "a control character or half of a surrogate pair")
    return str(value)


def _int(value: Any, path: str, least: int = 0, most: int = MAX_INT) -> int:
    need(isinstance(value, int) and not isinstance(value, bool), path, "expected an integer")
    need(least <= value <= most, path, f"not within {least} .. {most}")
    return int(value)


def _keys(value: Tree, path: str) -> dict[str, str]:
    """The path of each member."""
    paths = {name: f"{path}.{name[:40]}".lstrip(".") for name in value}
    for name in value:
        need(name.isascii(), paths[name], "a key that is not ASCII")
        _text(name, paths[name])
    return paths


def _extension(value: Any, path: str) -> None:
    """Anything but fractions (1)."""
    need(not isinstance(value, Fraction), path, "expected an integer")
    if isinstance(value, str):
        _text(value, path)
    elif isinstance(value, int) and not isinstance(value, bool):
        _int(value, path, -MAX_INT)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _extension(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for name, where in _keys(value, path).items():
            _extension(value[name], where)


def read_fields(kind: str, value: Any, path: str) -> Any:
    """Read a value of a kind with all of its defaults put in."""
    last = path.rsplit(".", 1)[-1].split("[")[0]
    if kind == "text":
        text = _text(value, path)
        need(last not in NAMES or text in NAMES[last], path, f"the name {text[:40]!r} is unknown")
        return text
    if kind == "int" or (kind == "int?" and value is not None):
        return _int(value, path, int(last in AT_LEAST_ONE), MOST.get(last, MAX_INT))
    if kind == "int?":
        return None
    if kind == "bool":
        need(isinstance(value, bool), path, "expected true or false")
        return value
    if kind[0] in "[(":
        need(isinstance(value, list), path, "expected a list")
        inner = kind[1:].split(",") if kind[0] == "(" else [kind[1:]] * len(value)
        need(len(value) == len(inner), path, f"expected {len(inner)} items")
        if kind[0] == "[":
            need(len(value) <= MOST_ITEMS.get(last, 4096), path, "too many")
            need(value or last in ("terms", "kv_share"), path, "expected one or more")
        pairs = enumerate(zip(inner, value, strict=True))
        return [read_fields(what, item, f"{path}[{i}]") for i, (what, item) in pairs]
    need(isinstance(value, dict), path, "expected an object")
    names = _keys(value, path)
    if kind == "shape":
        for name in value:
            need(name in AXES, names[name], "no axis")
            _int(value[name], names[name], 1, 2**20)
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
        tree[name] = read_fields(what, value.get(name, default), where)
    return tree


def _param(value: Any, path: str) -> Any:
    if isinstance(value, list):
        need(len(value) <= 8192, path, "more than 8192 items")
        need(not any(isinstance(item, list) for item in value), path, "a list in a list")
        return [_param(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, str):
        return _int(value, path, -MAX_INT)
    if _text(value, path)[:4] in ("f32:", "f64:"):
        need(FLOAT.fullmatch(value), path, "expected lower-case hex digits of a float")
        need(math.isfinite(number(value)), path, "not finite")
    return value
