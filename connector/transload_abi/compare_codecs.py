"""What differs between two groups' codecs and numbers, where their pages hold the same roles.

Paths are those of the destination.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from transload_abi.codecs import CODECS, rotation_param, scale_param
from transload_abi.compare_difference import Difference, differ
from transload_abi.compare_values import Values, change, values_of
from transload_abi.compare_words import SHORT_WORDS
from transload_abi.types import Group, Role


def value_roles(group: Group) -> list[Role]:
    """The roles that hold values and not scales, by name."""
    scales = set(CODECS[group.codec.id].scale_role.values())
    return sorted(
        (role for role in group.roles if role.role not in scales), key=lambda role: role.role
    )


def codec_differences(src: Group, dst: Group, path: str) -> Iterator[Difference]:
    """Parameters that no conversion mends: of rotations, and of codecs without values."""
    a, b = src.codec, dst.codec
    fields = {
        rotation_param(role.role): f"rotation of {SHORT_WORDS[role.role]}"
        for role in value_roles(dst)
    }
    if not CODECS[b.id].has_values:
        # Such codecs share no roles with others, so it is the same on both sides.
        fields = {name: f"codec's {name}" for name in sorted(a.params.keys() | b.params.keys())}
    for name, field in fields.items():
        ours, theirs = a.params.get(name, "none"), b.params.get(name, "none")
        if ours != theirs:
            yield differ(f"{path}.codec.params.{name}", field, (ours, theirs), "refused")


def value_differences(
    src: Group, dst: Group, layers: Sequence[int], path: str
) -> Iterator[Difference]:
    """For each role the first layer with a loss, else the first with a change."""
    for b in value_roles(dst):
        a = src.role(b.role)
        assert a is not None, "both sides have the same value roles"
        changed = [
            (layer, ours, theirs)
            for layer in layers
            if (ours := values_of(src, a, layer)) != (theirs := values_of(dst, b, layer))
        ]
        by_change = {
            change(ours, theirs): (layer, ours, theirs) for layer, ours, theirs in reversed(changed)
        }
        for result in ("lossy", "lossless"):
            if result in by_change:
                yield _value_difference(dst, b, result, *by_change[result], path)
                break


def _value_difference(
    dst: Group,
    role: Role,
    verdict: Literal["lossy", "lossless"],
    layer: int,
    ours: Values,
    theirs: Values,
    path: str,
) -> Difference:
    at = f"{path}.{_value_field(dst, role, ours, theirs)}"
    if at.endswith(scale_param(role.role)):
        at = f"{at}[{dst.layers.index(layer)}]"
    name = SHORT_WORDS[role.role]
    where = "" if ours.scale is None and theirs.scale is None else f" for layer {layer}"
    note = "every value is kept" if verdict == "lossless" else "values are rounded"
    return Difference(
        at,
        f"values of {name}",
        f"{ours.words}{where}",
        f"{theirs.words}{where}",
        verdict,
        f"{name}: the source holds {ours.words}{where} and the destination {theirs.words}: {note}",
    )


def _value_field(dst: Group, role: Role, ours: Values, theirs: Values) -> str:
    """The first field by which numbers of a role differ."""
    if ours.codec != theirs.codec:
        return "codec.id"
    if ours.scale != theirs.scale:
        return f"codec.params.{scale_param(role.role)}"
    if ours.dtype != theirs.dtype:
        return f"roles[{dst.roles.index(role)}].dtype"
    inline = dst.role(CODECS[dst.codec.id].scale_role.get(role.role, ""))
    if inline and ours.inline != theirs.inline:
        return f"roles[{dst.roles.index(inline)}].dtype"
    assert inline, "values that differ in none of these differ in the groups of their scales"
    return f"roles[{dst.roles.index(inline)}].shape.G"
