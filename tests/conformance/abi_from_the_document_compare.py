"""Comparing two descriptors of `kvabi/1`, from its document alone (8)."""

import math
from itertools import product
from typing import Any, NamedTuple

from conformance.abi_from_the_document_fields import FLOAT, number
from conformance.abi_from_the_document_spelling import Tree
from conformance.abi_from_the_document_values import FLOATS, decode, role_of, short

VERDICTS = ("identical", "lossless", "lossy", "refused")
VALUE_ROLES = ("k", "v", "latent", "rope", "conv", "ssm")
APART = ("cross", "recurrent", "ring")  # kinds that meet their own alone; all others are attention


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
    names = [{role["role"] for role in g["roles"]} for g in (old, new)]
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
    if kinds[0] != kinds[1] and not (kinds == ("full", "sliding_window") and same_window):
        return "kind"
    for name in ("window", "tokens_per_state"):
        if old[name] != new[name]:
            return name
    if old["owner"]["heads"][2] != new["owner"]["heads"][2]:
        return "owner.heads"
    if values_of(old) != values_of(new):
        return "roles"
    for i, role in enumerate(new["roles"]):
        name = role["role"]
        if name in VALUE_ROLES and role["shape"]["D"] != role_of(old, name)["shape"]["D"]:
            return f"roles[{i}].shape.D"
    if kinds[1] == "ring" and old["tokens_per_block"] != new["tokens_per_block"]:
        return "tokens_per_block"
    return ""


def values_of(g: Tree) -> list[str]:
    """The roles of a group but for scales."""
    return [role["role"] for role in g["roles"] if role["role"] in VALUE_ROLES]


# --- rules 3 to 5 --------------------------------------------------------------------------------


def _verdict(m: Meeting) -> Verdict:
    other = _other_group(m.old, m.new)
    if other:
        return Verdict("refused", f"{m.path}.{other}")
    bits = [as_bits(m, name) for name in values_of(m.new)]
    if all(bits) and m.old["codec"]["id"] == m.new["codec"]["id"]:
        old, new = short(m.old, "Group"), short(m.new, "Group")
        page = all(old.get(key) == new.get(key) for key in ("roles", "tokens_per_block"))
        owner = all(m.old["owner"][key] == m.new["owner"][key] for key in ("heads", "tokens"))
        return Verdict("identical" if page and owner else "lossless")
    kept = [_role_kept(m, name) for name in values_of(m.new)]
    return Verdict("lossless" if all(a or b for a, b in zip(bits, kept, strict=True)) else "lossy")


def scale_of(g: Tree, name: str, layer: int) -> str:
    """What multiplies a role: `f32:`, the role of inline scales, or nothing."""
    codec = g["codec"]["id"]
    if codec == "fp8_per_tensor":
        return str(g["codec"]["params"][f"scales.{name}"][g["layers"].index(layer)])
    if codec == "per_token_head" or (codec == "fp8_ds_mla_656" and name == "latent"):
        return f"{name}_scale"
    return ""


def as_bits(m: Meeting, name: str) -> bool:
    """Whether dtype and scale of a role are the same on both sides, so that its bits move."""
    same = all(scale_of(m.old, name, n) == scale_of(m.new, name, n) for n in m.layers)
    return same and role_of(m.old, name)["dtype"] == role_of(m.new, name)["dtype"]


def _role_kept(m: Meeting, name: str) -> bool:
    """Whether each value of a role is kept by other bits (rule 5)."""
    before, after = role_of(m.old, name)["dtype"], role_of(m.new, name)["dtype"]
    if m.new["codec"]["id"] != "none":
        return False
    if after == "f32":
        return True
    if m.old["codec"]["id"] != "fp8_per_tensor":
        return False
    _, digits, bias, largest, _ = FLOATS[after]
    least = math.ldexp(1.0, 1 - bias - digits)
    for layer in m.layers:
        scale = number(scale_of(m.old, name, layer))
        small, large = decode(before, 1) * scale, FLOATS[before][3] * scale
        if math.frexp(scale)[0] != 0.5 or small < least or large > largest:
            return False
    return True
