"""What must hold in a group's roles and in its codec: names, shapes, digits, parameters."""

from math import prod
from typing import Final

from transload_abi.canonical import AXES
from transload_abi.codecs import CODECS, CodecRule, rotation_param, scale_param
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction, LimitExceeded, MalformedDescriptor, UnknownPart
from transload_abi.floats import read_float
from transload_abi.limits import MAX_AXIS
from transload_abi.roles import ROLES
from transload_abi.tree import join, quote
from transload_abi.types import Group, Param, Role

_NO_HEADS: Final = (0, 1, 1)

_MAX_CODE_BITS: Final = 8
"""Of a key's or a value's code: codes are packed into bytes."""


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
        _check_groups(group, role, rule, f"{path}.roles[{index}].shape")
    _check_one_name(group, path)
    if codec.id == "opaque" and not group.opaque:
        raise Contradiction("expected a text where the codec is opaque", f"{path}.opaque")
    _check_params(group, rule, f"{where}.params")


def _check_groups(group: Group, role: Role, rule: CodecRule, path: str) -> None:
    """The elements that share a scale."""
    share = rule.group_elements.get(role.role)
    if share is None:
        return
    scales = group.role(rule.scale_role[role.role])
    assert scales, "the codec's set of roles has its scales"
    num_groups, num_elements = scales.shape["G"], role.shape["D"]
    if share and num_groups * share != num_elements:
        raise Contradiction(f"{num_groups} scales of {share} elements for {num_elements}", path)
    if num_elements % num_groups or num_elements == num_groups:
        raise Contradiction(
            f"{num_groups} scales for {num_elements} elements: expected two or more for each", path
        )


def _check_one_name(group: Group, path: str) -> None:
    """What `fp8_ds_mla_656` says nobody says otherwise, so that equal pages have equal names."""
    if group.codec.id != "block_scaled" or group.codec.params:
        return
    dtypes = {role.role: role.dtype for role in group.roles}
    if dtypes != {"latent": "e4m3", "latent_scale": "f32", "rope": "bf16"}:
        return
    latent, scales = group.role("latent"), group.role("latent_scale")
    assert latent, "it is among the names"
    assert scales, "it is among the names"
    if latent.shape["D"] == 128 * scales.shape["G"]:
        raise Contradiction("expected 'fp8_ds_mla_656' for such roles", f"{path}.codec.id")


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


def _check_params(group: Group, rule: CodecRule, path: str) -> None:
    params = group.codec.params
    scales, rotations = _scale_params(group, rule), _rotation_params(group, rule)
    known = {*scales, *rotations, *rule.text_params, *rule.integer_params}
    for name in params:
        if name not in known:
            raise UnknownPart(f"codec {group.codec.id!r} has no such parameter", join(path, name))
    if rule.has_scales_param or not params.keys().isdisjoint(scales):
        for name in scales:
            _check_scales(params.get(name), len(group.layers), join(path, name))
    for name in (*rule.text_params, *sorted(rotations & params.keys())):
        _check_text(params.get(name), join(path, name))
    for name in rule.integer_params:
        bits = params.get(name)
        if not isinstance(bits, int) or not 1 <= bits <= _MAX_CODE_BITS:
            raise Contradiction(f"expected 1 to {_MAX_CODE_BITS}", join(path, name))


def _scale_params(group: Group, rule: CodecRule) -> list[str]:
    """Of all roles that may have a scale for each layer, sorted."""
    names = {role.role for role in group.roles}
    if not rule.has_scales_param:
        names &= rule.scale_role.keys() if rule.may_have_scales_param else set()
    return sorted(map(scale_param, names))


def _rotation_params(group: Group, rule: CodecRule) -> set[str]:
    if not rule.may_be_rotated:
        return set()
    return {rotation_param(role.role) for role in group.roles if role.role in rule.scale_role}


def _check_scales(scales: Param | None, num_layers: int, path: str) -> None:
    if not isinstance(scales, list) or len(scales) != num_layers:
        raise Contradiction(f"expected a list of {num_layers} scales, one per layer", path)
    for index, scale in enumerate(scales):
        where = f"{path}[{index}]"
        if not isinstance(scale, str) or not scale.startswith("f32:"):
            raise MalformedDescriptor("expected 'f32:' and hex digits", where)
        if read_float(scale, where) <= 0:
            raise Contradiction(f"{scale} is not above zero", where)


def _check_text(text: Param | None, path: str) -> None:
    if not isinstance(text, str) or not text:
        raise Contradiction("expected a text that is not empty", path)
    if text.startswith(("f32:", "f64:")):
        read_float(text, path)
