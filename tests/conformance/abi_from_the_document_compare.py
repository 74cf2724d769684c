"""Comparing two descriptors of `kvabi/1`, from its document alone (8)."""

import math
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from conformance.abi_from_the_document_codecs import (
    WITHOUT_VALUES,
    page_scale,
    param_scale,
    value_roles,
)
from conformance.abi_from_the_document_fields import FIELDS, FLOAT, number
from conformance.abi_from_the_document_numbers import FLOATS, decode
from conformance.abi_from_the_document_spelling import Tree
from conformance.abi_from_the_document_values import role_of

VERDICTS = ("identical", "lossless", "lossy", "refused")
# Kinds that meet their own alone; all others are attention.
APART = ("cross", "recurrent", "ring", "sliding_window_mla")


class Verdict(NamedTuple):
    """A verdict, and the field that forbids where it is `refused`."""

    name: str
    path: str = ""


class Meeting(NamedTuple):
    """Two groups that are compared, and the layers for which they are."""

    old: Tree
    new: Tree
    path: str
    layers: list[int]

    @property
    def moves(self) -> bool:
        """Whether the two have a head and a token in common (rule 1)."""
        return common_heads(self.old, self.new) and common_tokens(self.old, self.new)


class Comparison(NamedTuple):
    """The verdicts on a pair, and whether the source has anything that the destination takes."""

    verdicts: list[Verdict]
    moves: bool


def worst(verdicts: list[Verdict]) -> Verdict:
    """The worst of some verdicts, the first of equals."""
    none = Verdict("identical")
    return max(verdicts, key=lambda verdict: VERDICTS.index(verdict.name), default=none)


def compare(source: Tree, target: Tree) -> Comparison:
    """Compare two canonical descriptors."""
    model = _other_model(source["model"], target["model"])
    met = meetings(source, target)
    moving = [m for m in met if m.moves]
    if moving:
        verdicts = [Verdict("refused", model) if model else _verdict(m) for m in moving]
        return Comparison(verdicts, True)
    refused = []
    for i, new in enumerate(target["groups"]):
        if new["transferable"]:
            olds = [m.old for m in met if m.new is new]
            field = "owner.tokens" if any(common_heads(old, new) for old in olds) else "owner.heads"
            refused.append(model or f"groups[{i}].{field if olds else 'layers'}")
    return Comparison([Verdict("refused", path) for path in refused], False)


# --- who meets -----------------------------------------------------------------------------------


def meetings(source: Tree, target: Tree) -> list[Meeting]:
    """The groups that are compared, in the order of the destination's."""
    olds = [g for g in source["groups"] if g["transferable"]]
    news = [g for g in target["groups"] if g["transferable"]]
    met = []
    for new, old in product(news, olds):
        layers = [layer for layer in new["layers"] if layer in old["layers"]]
        if not _partners(old, new):
            layers = [
                layer
                for layer in layers
                if not any(_partners(old, g) for g in news if layer in g["layers"])
                and not any(_partners(g, new) for g in olds if layer in g["layers"])
            ]
        if layers:
            met.append(Meeting(old, new, f"groups[{target['groups'].index(new)}]", layers))
    return met


def _partners(old: Tree, new: Tree) -> bool:
    """Whether two groups hold the same sort of thing with a role in common."""
    sorts = [g["kind"] if g["kind"] in APART else "attention" for g in (old, new)]
    names = [
        {(r["role"], g["opaque"] if r["role"] == "page" else "") for r in g["roles"]}
        for g in (old, new)
    ]
    return sorts[0] == sorts[1] and bool(names[0] & names[1])


def common_heads(old: Tree, new: Tree) -> bool:
    """Whether two groups have a head in common."""
    (a, a_end, _), (b, b_end, _) = old["owner"]["heads"], new["owner"]["heads"]
    return bool(max(a, b) < min(a_end, b_end))


def common_tokens(old: Tree, new: Tree) -> bool:
    """Whether two groups have a token in common: turns meet where a remainder of both does."""
    a, b = old["owner"]["tokens"], new["owner"]["tokens"]
    step = math.gcd(a["interleave"] * a["size"], b["interleave"] * b["size"])
    first, end = a["rank"] * a["interleave"], (a["rank"] + 1) * a["interleave"]
    least = first - ((b["rank"] + 1) * b["interleave"] - 1)
    most = end - 1 - b["rank"] * b["interleave"]
    return bool(most // step * step >= least)


# --- rule 2 --------------------------------------------------------------------------------------


def _other_model(old: Tree, new: Tree) -> str:
    both = old["weights"] and new["weights"]
    for name in ["weights"] if both else ["name", "revision"]:
        if old[name] != new[name]:
            return f"model.{name}"
    if not both and not new["revision"]:
        return "model.weights"
    if old["adapter"] != new["adapter"]:
        return "model.adapter"
    state = new["rope"]["state"]
    if state == "unknown" or state != old["rope"]["state"]:
        return "model.rope.state"
    ours, theirs = new["rope"]["params"], old["rope"]["params"]
    for name in sorted(ours.keys() | theirs.keys()):
        lacking = (name in ours) != (name in theirs)
        if lacking or _by_value(ours[name]) != _by_value(theirs[name]):
            return f"model.rope.params.{name}"
    for name in ("num_layers", "kv_share"):
        if old[name] != new[name]:
            return f"model.{name}"
    return ""


def _by_value(param: Any) -> Any:
    if isinstance(param, list):
        return [_by_value(item) for item in param]
    return number(param) if isinstance(param, str) and FLOAT.fullmatch(param) else param


def _other_group(old: Tree, new: Tree) -> str:
    kinds, same_window = (old["kind"], new["kind"]), old["window"] == new["window"]
    if old["opaque"] != new["opaque"]:
        return "opaque"
    if kinds[0] != kinds[1] and not (kinds == ("full", "sliding_window") and same_window):
        return "kind"
    for name in ("window", "tokens_per_state"):
        if old[name] != new[name]:
            return name
    if old["owner"]["heads"][2] != new["owner"]["heads"][2]:
        return "owner.heads"
    if value_roles(old) != value_roles(new):
        return "roles"
    for i, role in enumerate(new["roles"]):
        name = role["role"]
        if name in value_roles(new) and _width(role) != _width(role_of(old, name)):
            return f"roles[{i}].shape.D"
    if kinds[1] == "ring" and old["tokens_per_block"] != new["tokens_per_block"]:
        return "tokens_per_block"
    return _other_codec(old["codec"], new["codec"])


def _width(role: Tree) -> int:
    return int(role["shape"].get("D", 0))


def _other_codec(old: Tree, new: Tree) -> str:
    """The first of what a codec says that no conversion bridges."""
    without = any(codec["id"] in WITHOUT_VALUES for codec in (old, new))
    names = sorted(old["params"].keys() | new["params"].keys())
    rotations = [name for name in names if name.startswith("rotation.")]
    if without and old["id"] != new["id"]:
        return "codec.id"
    for name in names if without else rotations:
        if old["params"].get(name) != new["params"].get(name):
            return f"codec.params.{name}"
    return ""


# --- rules 3 to 5 --------------------------------------------------------------------------------


def _verdict(m: Meeting) -> Verdict:
    other = _other_group(m.old, m.new)
    if other:
        return Verdict("refused", f"{m.path}.{other}")
    parts = list(product(value_roles(m.new), m.layers))
    field = _other_page(m)
    if not field:
        return Verdict("identical")
    if m.new["opaque"]:
        return Verdict("refused", f"{m.path}.{field}")
    kept = all(as_bits(m, *part) or _is_kept(m, *part) for part in parts)
    return Verdict("lossless" if kept else "lossy")


def _other_page(m: Meeting) -> str:
    """The first field by which pages or their owners differ."""
    old, new = m.old, m.new
    if old["tokens_per_block"] != new["tokens_per_block"]:
        return "tokens_per_block"
    for name in ("heads", "tokens"):
        if old["owner"][name] != new["owner"][name]:
            return f"owner.{name}"
    if old["codec"]["id"] != new["codec"]["id"]:
        return "codec.id"
    ours, theirs = (_params_of(g, m.layers) for g in (new, old))
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return f"codec.params.{name}"
    pairs = list(zip(new["roles"], old["roles"], strict=True))
    for names in (["dtype"], [name for name in FIELDS["Role"] if name != "dtype"]):
        for i, (role, other) in enumerate(pairs):
            for name in names:
                if role[name] != other[name]:
                    return f"roles[{i}].{name}"
    return ""


def _params_of(g: Tree, layers: list[int]) -> Tree:
    """The parameters of a codec, with the scales of some layers alone."""
    params = dict(g["codec"]["params"])
    scales = {name for name in params if name.startswith("scales.")}
    at = [g["layers"].index(layer) for layer in layers]
    return params | {name: [params[name][i] for i in at] for name in scales}


def as_bits(m: Meeting, name: str, layer: int) -> bool:
    """Whether a role's elements are the same on both sides, scales included, so that bits move."""
    sides = []
    for g in (m.old, m.new):
        scale = page_scale(g, name)
        in_page: Tree = role_of(g, scale) if scale else {"dtype": "", "shape": {}}
        beside = (in_page["dtype"], in_page["shape"].get("G"))
        dtype = role_of(g, name)["dtype"]
        sides.append((g["codec"]["id"], dtype, param_scale(g, name, layer), *beside))
    return sides[0] == sides[1]


def _is_kept(m: Meeting, name: str, layer: int) -> bool:
    """Whether each finite value of a role is kept by other bits (rule 5)."""
    before, after = role_of(m.old, name)["dtype"], role_of(m.new, name)["dtype"]
    params = [param_scale(g, name, layer) for g in (m.old, m.new)]
    if page_scale(m.new, name):
        return False
    if after == "f32" and not params[1]:
        return True
    if before not in FLOATS:
        return False
    old, new = (Fraction(number(text) if text else 1.0) for text in params)
    scale = page_scale(m.old, name)
    in_page = role_of(m.old, scale)["dtype"] if scale else ""
    if in_page == "f32" or (in_page == "ue8m0" and after != "bf16"):
        return False
    within = all(Fraction(1, 2**100) <= x <= 2**100 for x in (old, new))
    if not _is_power(old / new) or not (within or (_is_power(old) and _is_power(new))):
        return False
    digits = [FLOATS[dtype][1] + 1 for dtype in (before, after)]
    least, largest = Fraction(decode(before, 1)), Fraction(FLOATS[before][3])
    if in_page == "e4m3":
        digits[0] += FLOATS[in_page][1] + 1
        least *= Fraction(decode(in_page, 1))
        largest *= Fraction(FLOATS[in_page][3])
    least, largest = least * old / new, largest * old / new
    inside = least >= Fraction(decode(after, 1)) and largest <= Fraction(FLOATS[after][3])
    return digits[0] <= digits[1] and (inside or in_page == "ue8m0")


def _is_power(x: Fraction) -> bool:
    """Whether a number above zero is a power of two."""
    return all(n & (n - 1) == 0 for n in (x.numerator, x.denominator))
