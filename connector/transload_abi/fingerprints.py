"""Fingerprints: three digests that say whether bytes, meanings or placements are the same.

Each is the SHA-256, as 64 hex digits, of its name, a colon and the canonical JSON of its parts::

    sha256(b'page:{"codec":{},"endian":"little",...}')

Who wrote a descriptor, extensions, and the ids of groups are in none of them.
"""

import hashlib
from typing import Any, NamedTuple

from transload_abi.canonical import canonical, canonical_group
from transload_abi.codecs import scale_param
from transload_abi.tree import Tree, canonical_text, inspect, tree_of
from transload_abi.types import Descriptor, Group, Model


class Fingerprints(NamedTuple):
    """The three of a group or a descriptor.

    Attributes:
        page: Where equal, the bytes of a page may be copied as they are.
        meaning: Where equal, moving bits alone converts one into the other.
        placement: Where equal, a page is at the same place of the same pool.
    """

    page: str
    meaning: str
    placement: str


def of_group(descriptor: Descriptor, group: Group) -> Fingerprints:
    """The fingerprints of one of a checked descriptor's groups, whatever the spelling."""
    return _of_group(descriptor, group, _text("meaning.model", _model(descriptor.model)))


def of_groups(descriptor: Descriptor) -> list[Fingerprints]:
    """As `of_group`, of all groups in their order; spells out once what they have in common."""
    model = _text("meaning.model", _model(descriptor.model))
    return [_of_group(descriptor, group, model) for group in descriptor.groups]


def _of_group(descriptor: Descriptor, group: Group, model: bytes) -> Fingerprints:
    group = canonical_group(group)
    return Fingerprints(
        _digest("page", _page(descriptor, group)),
        _hash("meaning", _meaning(group, model)),
        _digest("placement", _placement(descriptor, group)),
    )


def of_descriptor(descriptor: Descriptor) -> Fingerprints:
    """The fingerprints of all groups together; for `placement`, also of pools that none uses."""
    whole = canonical(descriptor)
    groups = of_groups(whole)
    return Fingerprints(
        _digest("page", sorted(group.page for group in groups)),
        _digest("meaning", sorted(group.meaning for group in groups)),
        _digest(
            "placement",
            {
                "groups": sorted(group.placement for group in groups),
                "pools": tree_of(whole.pools),
            },
        ),
    )


def _digest(name: str, parts: Tree) -> str:
    return _hash(name, _text(name, parts))


def _text(path: str, parts: Tree) -> bytes:
    inspect(parts, path)
    return canonical_text(parts)


def _hash(name: str, text: bytes) -> str:
    return hashlib.sha256(name.encode() + b":" + text).hexdigest()


def _page(descriptor: Descriptor, group: Group) -> dict[str, Any]:
    opaque = {"opaque": group.opaque} if group.opaque else {}
    return opaque | {
        "codec": tree_of(group.codec),
        "endian": descriptor.endian,
        "roles": tree_of(group.roles),
        "tokens_per_block": group.tokens_per_block,
        "tokens_per_state": tree_of(group.tokens_per_state),
    }


def _meaning(group: Group, model: bytes) -> bytes:
    """The canonical text, in which the model's, the same for all groups, stands amid the rest."""
    before = {
        "codec": {"id": group.codec.id, "params": _params_by_layer(group)},
        "heads": group.owner.heads[2],
        "kind": group.kind,
        "layers": sorted(group.layers),
    }
    after = {
        "roles": [
            {
                "dtype": role.dtype,
                "role": role.role,
                "shape": {axis: size for axis, size in role.shape.items() if axis not in "HN"},
            }
            for role in group.roles
        ],
        "tokens_per_state": tree_of(group.tokens_per_state),
        "window": group.window,
    }
    texts = _text("meaning", before), _text("meaning", after)
    return b"".join((texts[0][:-1], b',"model":', model, b",", texts[1][1:]))


def _params_by_layer(group: Group) -> dict[str, Any]:
    """The codec's parameters, with those that are per layer in the order of the layers' numbers."""
    order = sorted(range(len(group.layers)), key=lambda position: group.layers[position])
    per_layer = {scale_param(role.role) for role in group.roles}
    return {
        name: [value[position] for position in order]
        if name in per_layer and isinstance(value, list) and len(value) == len(order)
        else value
        for name, value in group.codec.params.items()
    }


def _model(model: Model) -> dict[str, Any]:
    known = {"weights": model.weights}
    named = {"name": model.name, "revision": model.revision}
    return {
        **(known if model.weights else named),
        "adapter": model.adapter,
        "kv_share": sorted(tree_of(model.kv_share)),
        "num_layers": model.num_layers,
        "rope": tree_of(model.rope),
    }


def _placement(descriptor: Descriptor, group: Group) -> dict[str, Any]:
    used = {pool for place in group.places for pool in place.pools}
    pools = sorted(descriptor.pools, key=lambda pool: pool.id)
    return {
        "layers": list(group.layers),
        "null_block": group.null_block,
        "owner": tree_of(group.owner),
        "places": tree_of(group.places),
        "pools": [tree_of(pool) for pool in pools if pool.id in used],
        "table": group.table,
    }
