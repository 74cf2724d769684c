"""The canonical form of a descriptor: one value for all descriptors that say the same."""

from typing import Final

from msgspec.structs import replace

from transload_abi.errors import Contradiction
from transload_abi.types import Descriptor, Group, Place, Role, TokenSlice

AXES: Final = ("H", "N", "D", "G")
"""All axes, in canonical order."""

Term = tuple[str, int, int, int]


def canonical(descriptor: Descriptor) -> Descriptor:
    """The canonical form: pools, groups, roles and digits in order, nothing that says nothing.

    Layers keep their order, since the placement counts them. Idempotent.

    Raises:
        Contradiction: A role names a place that its group lacks.
    """
    groups = sorted(descriptor.groups, key=lambda group: (group.table, group.id))
    return replace(
        descriptor,
        model=replace(descriptor.model, kv_share=tuple(sorted(descriptor.model.kv_share))),
        pools=tuple(sorted(descriptor.pools, key=lambda pool: pool.id)),
        groups=tuple(canonical_group(group) for group in groups),
    )


def canonical_group(group: Group) -> Group:
    """The canonical form of one group, with the errors of `canonical`."""
    places: dict[Place, int] = {}
    roles = []
    for role in sorted(group.roles, key=lambda role: role.role):
        if not 0 <= role.place < len(group.places):
            raise Contradiction(
                f"role {role.role[:20]} is in place {role.place} of {len(group.places)}",
                "groups[].roles[].place",
            )
        place = canonical_place(group.places[role.place], len(group.layers))
        number = places.setdefault(place, len(places))
        roles.append(replace(role, place=number, terms=canonical_terms(role)))
    tokens = group.owner.tokens
    owner = replace(group.owner, tokens=tokens if tokens.size > 1 else TokenSlice(tokens.rank))
    return replace(group, roles=tuple(roles), places=tuple(places), owner=owner)


def canonical_terms(role: Role) -> tuple[Term, ...]:
    """The fewest digits that say the same, by axis in the order of `AXES`, then by `div`."""
    merged: list[Term] = []
    for axis, div, extent, stride in sorted(
        (term for term in role.terms if term[2] != 1), key=_position
    ):
        if merged:
            last_axis, last_div, last_extent, last_stride = merged[-1]
            follows = axis == last_axis and div == last_div * last_extent
            if follows and stride == last_stride * last_extent:
                merged[-1] = (axis, last_div, last_extent * extent, last_stride)
                continue
        merged.append((axis, div, extent, stride))
    return tuple(merged)


def _position(term: Term) -> tuple[int, str, int]:
    axis, div, _, _ = term
    return AXES.index(axis) if axis in AXES else len(AXES), axis, div


def canonical_place(place: Place, num_layers: int) -> Place:
    """A place of a group of that many layers, without what says nothing there."""
    return replace(place, layer_stride=0) if num_layers == 1 else place
