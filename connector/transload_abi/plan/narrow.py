"""A source's descriptor cut down to the layers and heads that one destination takes from it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from transload_abi.codecs import scale_param
from transload_abi.compare_words import short
from transload_abi.errors import Refused
from transload_abi.limits import MAX_LAYERS
from transload_abi.plan.axes import digits, offset, restrict, spans
from transload_abi.roles import ROLES
from transload_abi.types import Codec, Descriptor, Group, Param, Place, Role


class Take(NamedTuple):
    """Layers and heads (first, end, of the model's) that are taken from a group."""

    group: Group
    layers: tuple[int, ...]
    heads: tuple[int, int]


def narrowed(descriptor: Descriptor, takes: Sequence[Take]) -> Descriptor:
    """A descriptor of the same memory that has only what is taken.

    It claims no whole blocks, since other things are in them.

    Heads of which no digits say where they are come in several groups, and so do layers.

    Raises:
        Refused: There would be more than `limits.MAX_LAYERS` groups.
    """
    groups: list[Group] = []
    for number, take in enumerate(takes):
        layer_runs = list(_layer_runs(take))
        parts = ((layers, heads) for heads in _head_spans(take) for layers in layer_runs)
        for part, (layers, heads) in enumerate(parts):
            if len(groups) == MAX_LAYERS:
                raise Refused(
                    f"heads {take.heads[0]} to {take.heads[1] - 1} of "
                    f"{short(take.group.id)} lie in too many parts to be taken alone"
                )
            group = _group(take._replace(layers=layers, heads=heads))
            groups.append(replace(group, id=f"{take.group.id}/{number}.{part}"))
    pools = tuple(replace(pool, block_bytes=0) for pool in descriptor.pools)
    return replace(descriptor, pools=pools, groups=tuple(groups))


def _layer_runs(take: Take) -> Iterator[tuple[int, ...]]:
    """The layers in runs that one layer stride can reach, in the group's order."""
    taken = frozenset(take.layers)
    positions = [at for at, layer in enumerate(take.group.layers) if layer in taken]
    begin = 0
    while begin < len(positions):
        end = begin + 1
        step = positions[end] - positions[begin] if end < len(positions) else 1
        while end < len(positions) and positions[end] - positions[end - 1] == step:
            end += 1
        yield tuple(take.group.layers[at] for at in positions[begin:end])
        begin = end


def _head_spans(take: Take) -> Iterator[tuple[int, int]]:
    """The heads in ranges that digits describe in all roles."""
    first, end = take.heads
    start = first - take.group.owner.heads[0]
    axes = [(digits(role, "H"), start) for role in take.group.roles if "H" in ROLES[role.role].axes]
    for begin, count in spans(axes, end - first):
        yield first + begin, first + begin + count


def _group(take: Take) -> Group:
    group = take.group
    is_whole = take.heads == group.owner.heads[:2]
    at = {layer: position for position, layer in enumerate(group.layers)}
    positions = [at[layer] for layer in take.layers]
    owner = replace(group.owner, heads=(*take.heads, group.owner.heads[2]))
    return replace(
        group,
        layers=take.layers,
        owner=owner,
        roles=tuple(_role(take, role) for role in group.roles),
        places=tuple(_place(place, positions, is_whole=is_whole) for place in group.places),
        codec=_codec(group, positions),
    )


def _place(place: Place, positions: list[int], *, is_whole: bool) -> Place:
    page_bytes = place.page_bytes if is_whole else 0
    if len(place.pools) > 1:
        pools = tuple(place.pools[at] for at in positions)
        return replace(place, pools=pools, page_bytes=page_bytes)
    step = positions[1] - positions[0] if len(positions) > 1 else 0
    return replace(
        place,
        offset=place.offset + positions[0] * place.layer_stride,
        layer_stride=place.layer_stride * step,
        page_bytes=page_bytes,
    )


def _role(take: Take, role: Role) -> Role:
    if "H" not in ROLES[role.role].axes:
        return role
    first, count = take.heads[0] - take.group.owner.heads[0], take.heads[1] - take.heads[0]
    kept = restrict(digits(role, "H"), first, count)
    assert kept is not None, "spans of heads fit the digits"
    others = tuple(term for term in role.terms if term[0] != "H")
    return replace(
        role,
        shape={**role.shape, "H": count},
        terms=(*(("H", *row) for row in kept), *others),
        base_bits=role.base_bits + offset(digits(role, "H"), first),
    )


def _codec(group: Group, positions: list[int]) -> Codec:
    params: dict[str, Param] = dict(group.codec.params)
    for role in group.roles:
        scales = params.get(scale_param(role.role))
        if isinstance(scales, list):
            params[scale_param(role.role)] = [scales[at] for at in positions]
    return replace(group.codec, params=params)
