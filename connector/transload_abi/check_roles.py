"""What must hold in a group's roles and in its codec: names, shapes, digits, parameters."""

from math import prod
from typing import Final

from transload_abi.canonical import AXES
from transload_abi.codecs import CODECS, scale_param
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction, LimitExceeded, MalformedDescriptor, UnknownPart
from transload_abi.floats import read_float
from transload_abi.limits import MAX_AXIS
from transload_abi.roles import ROLES
from transload_abi.tree import join, quote
from transload_abi.types import Codec, Group, Role

_NO_HEADS: Final = (0, 1, 1)


def check_roles(group: Group, path: str) -> None:
    """See that roles are known and unique, and that digits make up the shapes.

    Args:
        group: Its counts and owner are checked.
        path: Its path.

    Raises:
        UnknownPart: A role, dtype or axis.
        LimitExceeded: A shape.
        Contradiction: Anything else.
    """
    seen = set()
    for index, role in enumerate(group.roles):
        where = f"{path}.roles[{index}]"
        if role.role not in ROLES:
            raise UnknownPart(f"{quote(role.role)} is no role of this version", f"{where}.role")
        if role.role in seen:
            raise Contradiction(f"{role.role!r} is there twice", f"{where}.role")
        seen.add(role.role)
        _check_dtype(role, where)
        _check_shape(group, role, f"{where}.shape")
        _check_digits(role, f"{where}.terms")
        if not 0 <= role.place < len(group.places):
            raise Contradiction(f"place {role.place} of {len(group.places)}", f"{where}.place")
    has_heads = any("H" in ROLES[role.role].axes or role.role == "page" for role in group.roles)
    if not has_heads and group.owner.heads != _NO_HEADS:
        raise Contradiction(f"roles without heads are {_NO_HEADS}", f"{path}.owner.heads")


def check_codec(group: Group, path: str) -> None:
    """See that a codec is known, and that roles and parameters are those it asks for.

    Args:
        group: Its roles are checked.
        path: Its path.

    Raises:
        UnknownPart: A codec or a parameter.
        MalformedDescriptor: A parameter that is no `f32:` text.
        Contradiction: Anything else.
    """
    codec, where = group.codec, f"{path}.codec"
    rule = CODECS.get(codec.id)
    if rule is None:
        raise UnknownPart(f"{quote(codec.id)} is no codec of this version", f"{where}.id")
    names = {role.role for role in group.roles}
    dtypes = next((each for each in rule.role_sets if each.keys() == names), None)
    if dtypes is None:
        raise Contradiction(
            f"codec {codec.id!r} does not have the roles {sorted(names)}", f"{path}.roles"
        )
    for index, role in enumerate(group.roles):
        if role.dtype not in dtypes[role.role]:
            raise Contradiction(
                f"codec {codec.id!r} has {sorted(dtypes[role.role])}, got {role.dtype!r}",
                f"{path}.roles[{index}].dtype",
            )
        share = rule.group_elements.get(role.role)
        scales = group.role(rule.scale_role.get(role.role, ""))
        if share and scales and scales.shape["G"] * share != role.shape["D"]:
            raise Contradiction(
                f"{scales.shape['G']} scales of {share} elements for {role.shape['D']}",
                f"{path}.roles[{index}].shape",
            )
    due = {scale_param(name) for name in names} if rule.has_scales_param else set()
    _check_params(codec, due, len(group.layers), f"{where}.params")


def _check_dtype(role: Role, path: str) -> None:
    dtype = DTYPES.get(role.dtype)
    if dtype is None:
        raise UnknownPart(f"{quote(role.dtype)} is no dtype of this version", f"{path}.dtype")
    if role.bits != dtype.bits:
        raise Contradiction(f"{role.dtype} has {dtype.bits} bits, got {role.bits}", f"{path}.bits")


def _check_shape(group: Group, role: Role, path: str) -> None:
    axes = ROLES[role.role].axes
    for axis in role.shape:
        if axis not in AXES:
            raise UnknownPart(f"{quote(axis)} is no axis of this version", path)
    if role.shape.keys() != set(axes):
        raise Contradiction(f"{role.role!r} has the axes {axes}, got {list(role.shape)}", path)
    for axis, extent in role.shape.items():
        if extent < 1:
            raise Contradiction(f"expected 1 or more, got {extent}", join(path, axis))
        if extent > MAX_AXIS:
            raise LimitExceeded(f"expected at most {MAX_AXIS}, got {extent}", join(path, axis))
    expected = {"H": group.num_heads, "N": group.states_per_block}
    for axis, extent in expected.items():
        if axis in axes and role.shape[axis] != extent:
            raise Contradiction(f"the group has {extent}, got {role.shape[axis]}", join(path, axis))


def _check_digits(role: Role, path: str) -> None:
    """Each axis's digits start at 1, each where the one before ends, up to the extent."""
    unit = min(role.bits, 8)
    if role.base_bits % unit:
        raise Contradiction(
            f"expected a multiple of {unit}", path.removesuffix("terms") + "base_bits"
        )
    by_axis: dict[str, list[tuple[int, int, int]]] = {axis: [] for axis in role.shape}
    for index, (axis, div, extent, stride) in enumerate(role.terms):
        where = f"{path}[{index}]"
        if axis not in AXES:
            raise UnknownPart(f"{quote(axis)} is no axis of this version", where)
        if axis not in by_axis:
            raise Contradiction(f"{role.role!r} has no axis {axis!r}", where)
        if not 1 <= extent <= MAX_AXIS or not 1 <= div <= MAX_AXIS:
            raise Contradiction(f"no digit of div {div} and extent {extent}", where)
        if stride % unit:
            raise Contradiction(f"expected a multiple of {unit} bits, got {stride}", where)
        if extent > 1:
            by_axis[axis].append((div, extent, index))
    for axis, digits in by_axis.items():
        place = 1
        for div, extent, index in sorted(digits):
            if div != place:
                raise Contradiction(f"expected div {place}, got {div}", f"{path}[{index}]")
            place *= extent
        if place != role.shape[axis]:
            extents = [extent for _, extent, _ in sorted(digits)]
            raise Contradiction(
                f"the digits of {axis} count to {prod(extents)} of {role.shape[axis]}", path
            )


def _check_params(codec: Codec, due: set[str], num_layers: int, path: str) -> None:
    for name in codec.params:
        if name not in due:
            raise UnknownPart(f"codec {codec.id!r} has no such parameter", join(path, name))
    for name in sorted(due):
        where, scales = join(path, name), codec.params.get(name)
        if not isinstance(scales, list) or len(scales) != num_layers:
            raise Contradiction(f"expected a list of {num_layers} scales, one per layer", where)
        for index, scale in enumerate(scales):
            if not isinstance(scale, str) or not scale.startswith("f32:"):
                raise MalformedDescriptor("expected 'f32:' and hex digits", f"{where}[{index}]")
            if read_float(scale, f"{where}[{index}]") <= 0:
                raise Contradiction(f"{scale} is not above zero", f"{where}[{index}]")
