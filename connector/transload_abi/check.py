"""What must hold in a descriptor beyond its schema: limits, names, and what fields say together.

Roles and codecs are checked in `check_roles`, addresses in `check_pages`.
"""

import re
from math import gcd
from typing import Final, get_args

from transload_abi.check_pages import check_pages
from transload_abi.check_roles import check_codec, check_roles
from transload_abi.errors import Contradiction, LimitExceeded, MalformedDescriptor, UnknownPart
from transload_abi.floats import read_float
from transload_abi.limits import (
    MAX_BLOCK_TOKENS,
    MAX_BLOCKS,
    MAX_GROUPS,
    MAX_HEADS,
    MAX_INTEGER,
    MAX_LAYERS,
    MAX_PARAM_ITEMS,
    MAX_PARAMS,
    MAX_PLACES,
    MAX_POOLS,
    MAX_ROLES,
    MAX_TERMS,
)
from transload_abi.tree import inspect, quote, tree_of
from transload_abi.types import VERSION, Descriptor, Group, Kind, Memory, Model, Owner, Param, Pool

_WEIGHTS: Final = re.compile(r"sha256:[0-9a-f]{64}")

_ROPE_STATES: Final = ("none", "applied", "not_applied", "unknown")

_NEEDS_WINDOW: Final = {
    "full": None,
    "sliding_window": True,
    "chunked_local": True,
    "mla": False,
    "sliding_window_mla": True,
    "cross": False,
    "recurrent": False,
    "ring": True,
}
"""By kind: whether `window` must be above zero, or must be zero; None: either."""

_KEYS: Final = ("k", "k_code", "index_k")
_STATES: Final = ("ssm", "ssm_h", *(f"conv_{part}" for part in "qkvxbc"))

_NEEDS_ROLE: Final = {
    "full": _KEYS,
    "sliding_window": (*_KEYS, "state_kv", "index_state_kv"),
    "chunked_local": _KEYS,
    "mla": ("latent",),
    "sliding_window_mla": ("latent",),
    "cross": _KEYS,
    "recurrent": _STATES,
}
"""By kind: roles of which one tells the kind's sets from others; where there is none, any goes."""


def check(descriptor: Descriptor) -> None:
    """See that a descriptor can be true, whoever made it.

    Takes time in proportion to the descriptor's own length; its sizes do not matter.

    Raises:
        UnknownPart: A version, kind, role, dtype, axis, codec or parameter that this side lacks.
        LimitExceeded: Beyond `limits`, or too irregular to prove that no bits are shared.
        Contradiction: Fields that cannot be true together.
        MalformedDescriptor: Text or numbers that no encoding carries.
    """
    if descriptor.abi != VERSION:
        raise UnknownPart(f"expected {VERSION!r}, got {quote(descriptor.abi)}", "abi")
    if descriptor.endian != "little":
        raise UnknownPart(f"expected 'little', got {quote(descriptor.endian)}", "endian")
    _check_counts(descriptor)
    inspect(tree_of(descriptor))
    _check_model(descriptor.model)
    _check_pools(descriptor)
    _check_unique([group.id for group in descriptor.groups], "groups", "id")
    for index, group in enumerate(descriptor.groups):
        path = f"groups[{index}]"
        _check_group(group, path)
        _check_layers(descriptor.model, group, path)
        check_roles(group, path)
        check_codec(group, path)
        _check_kind_has_its_role(group, path)
    _check_layers_held_once(descriptor)
    _check_tables(descriptor)
    check_pages(descriptor)


def _check_counts(descriptor: Descriptor) -> None:
    """Lengths of lists, before anything walks them."""
    model = descriptor.model
    _check_count(len(model.rope.params), 0, MAX_PARAMS, "model.rope.params")
    _check_count(len(model.kv_share), 0, MAX_LAYERS, "model.kv_share")
    _check_count(len(descriptor.pools), 1, MAX_POOLS, "pools")
    _check_count(len(descriptor.groups), 1, MAX_GROUPS, "groups")
    for index, group in enumerate(descriptor.groups):
        path = f"groups[{index}]"
        _check_count(len(group.layers), 1, MAX_LAYERS, f"{path}.layers")
        _check_count(len(group.places), 1, MAX_PLACES, f"{path}.places")
        _check_count(len(group.roles), 1, MAX_ROLES, f"{path}.roles")
        _check_count(len(group.codec.params), 0, MAX_PARAMS, f"{path}.codec.params")
        for number, place in enumerate(group.places):
            _check_count(len(place.pools), 1, MAX_LAYERS, f"{path}.places[{number}].pools")
        for number, role in enumerate(group.roles):
            _check_count(len(role.terms), 0, MAX_TERMS, f"{path}.roles[{number}].terms")


def _check_count(count: int, least: int, most: int, path: str) -> None:
    if count < least:
        raise Contradiction(f"expected {least} or more, got {count}", path)
    if count > most:
        raise LimitExceeded(f"expected {most} or fewer, got {count}", path)


def _check_range(number: int, least: int, most: int, path: str) -> None:
    if number < least:
        raise Contradiction(f"expected {least} or more, got {number}", path)
    if number > most:
        raise LimitExceeded(f"expected at most {most}, got {number}", path)


def _check_unique(ids: list[str], path: str, field: str) -> None:
    seen: set[str] = set()
    for index, each in enumerate(ids):
        where = f"{path}[{index}].{field}"
        if not each:
            raise Contradiction("expected a name, got none", where)
        if each in seen:
            raise Contradiction(f"{quote(each)} is there twice", where)
        seen.add(each)


def _check_model(model: Model) -> None:
    _check_range(model.num_layers, 1, MAX_LAYERS, "model.num_layers")
    if model.weights and not _WEIGHTS.fullmatch(model.weights):
        raise MalformedDescriptor(
            f"expected 'sha256:' and 64 hex digits, got {quote(model.weights)}", "model.weights"
        )
    rope = model.rope
    if rope.state not in _ROPE_STATES:
        raise UnknownPart(f"expected one of {_ROPE_STATES}", "model.rope.state")
    for name, value in rope.params.items():
        _check_param(value, f"model.rope.params.{quote(name)[1:-1]}")
    if rope.state == "none" and rope.params:
        raise Contradiction("parameters of a rotation, where state says none", "model.rope.params")
    _check_shared_layers(model)


def _check_param(value: Param, path: str) -> None:
    """Floats are text, and what looks like such text must be a float."""
    items = value if isinstance(value, list) else [value]
    _check_count(len(items), 0, MAX_PARAM_ITEMS, path)
    for index, item in enumerate(items):
        if isinstance(item, str) and item.startswith(("f32:", "f64:")):
            read_float(item, f"{path}[{index}]" if isinstance(value, list) else path)


def _check_shared_layers(model: Model) -> None:
    sharing = {layer for layer, _ in model.kv_share}
    for index, (layer, source) in enumerate(model.kv_share):
        path = f"model.kv_share[{index}]"
        if max(layer, source) >= model.num_layers:
            raise Contradiction(f"the model has {model.num_layers} layers", path)
        if source in sharing:
            raise Contradiction(f"layer {source} has no keys and values of its own", path)
    if len(sharing) != len(model.kv_share):
        raise Contradiction("a layer reads two layers", "model.kv_share")


def _check_pools(descriptor: Descriptor) -> None:
    _check_unique([pool.id for pool in descriptor.pools], "pools", "id")
    for index, pool in enumerate(descriptor.pools):
        _check_pool(pool, f"pools[{index}]")


def _check_pool(pool: Pool, path: str) -> None:
    if pool.memory not in get_args(Memory):
        raise UnknownPart(f"expected one of {get_args(Memory)}", f"{path}.memory")
    _check_range(pool.num_bytes, 1, MAX_INTEGER // 8, f"{path}.num_bytes")
    _check_range(pool.num_blocks, 1, MAX_BLOCKS, f"{path}.num_blocks")
    if pool.align < 1 or pool.align & (pool.align - 1):
        raise Contradiction(f"expected a power of two, got {pool.align}", f"{path}.align")
    if pool.block_bytes * pool.num_blocks > pool.num_bytes:
        raise Contradiction(
            f"{pool.num_blocks} blocks of {pool.block_bytes} bytes in {pool.num_bytes} bytes",
            f"{path}.block_bytes",
        )


def _check_group(group: Group, path: str) -> None:
    """What a group says of itself, apart from its roles and places."""
    if group.kind not in get_args(Kind):
        raise UnknownPart(f"{quote(group.kind)} is no kind of this version", f"{path}.kind")
    _check_range(group.tokens_per_block, 1, MAX_BLOCK_TOKENS, f"{path}.tokens_per_block")
    _check_states(group, f"{path}.tokens_per_state")
    _check_window(group, f"{path}.window")
    _check_owner(group, f"{path}.owner")


def _check_kind_has_its_role(group: Group, path: str) -> None:
    needed = _NEEDS_ROLE.get(group.kind)
    if needed is None or any(group.role(name) for name in (*needed, "page")):
        return
    names = " or ".join(map(repr, needed))
    raise Contradiction(f"kind {group.kind!r} needs the role {names}", f"{path}.roles")


def _check_states(group: Group, path: str) -> None:
    numerator, denominator = group.tokens_per_state
    _check_range(numerator, 1, MAX_BLOCK_TOKENS, path)
    _check_range(denominator, 1, MAX_BLOCK_TOKENS, path)
    if gcd(numerator, denominator) != 1:
        raise Contradiction(f"{numerator}/{denominator} is not in lowest terms", path)
    if group.tokens_per_block * denominator % numerator:
        raise Contradiction(f"{group.tokens_per_block} tokens are no whole number of states", path)
    if group.kind == "recurrent" and group.tokens_per_state != (group.tokens_per_block, 1):
        raise Contradiction("a recurrent group has one state in a block", path)


def _check_window(group: Group, path: str) -> None:
    needs = _NEEDS_WINDOW[group.kind]
    if needs is not None and needs != (group.window > 0):
        expected = "a window above 0" if needs else "no window"
        raise Contradiction(f"kind {group.kind!r} has {expected}, got {group.window}", path)
    if group.kind == "ring" and group.window > group.tokens_per_block:
        raise Contradiction(
            f"a ring of {group.window} tokens in a block of {group.tokens_per_block}", path
        )


def _check_owner(group: Group, path: str) -> None:
    owner: Owner = group.owner
    first, end, total = owner.heads
    _check_range(total, 1, MAX_HEADS, f"{path}.heads")
    if not 0 <= first < end <= total:
        raise Contradiction(f"no heads {first} to {end} of {total}", f"{path}.heads")
    ordinal, replicas = owner.replica
    _check_range(replicas, 1, MAX_HEADS, f"{path}.replica")
    if not 0 <= ordinal < replicas:
        raise Contradiction(f"no replica {ordinal} of {replicas}", f"{path}.replica")
    tokens, tokens_path = owner.tokens, f"{path}.tokens"
    _check_range(tokens.size, 1, MAX_HEADS, f"{tokens_path}.size")
    _check_range(tokens.interleave, 1, MAX_BLOCK_TOKENS, f"{tokens_path}.interleave")
    if not 0 <= tokens.rank < tokens.size:
        raise Contradiction(f"no rank {tokens.rank} of {tokens.size}", f"{tokens_path}.rank")
    if tokens.size == 1:
        return
    if group.kind in ("recurrent", "ring"):
        raise Contradiction(f"a group of kind {group.kind!r} is not shared by tokens", tokens_path)
    if group.tokens_per_state != (1, 1):
        raise Contradiction("only states of one token each are shared among ranks", tokens_path)
    small, large = sorted((tokens.interleave, group.tokens_per_block))
    if large % small:
        raise Contradiction(
            f"{tokens.interleave} does not divide into blocks of {group.tokens_per_block} tokens",
            f"{tokens_path}.interleave",
        )


def _check_layers(model: Model, group: Group, path: str) -> None:
    sharing = {layer for layer, _ in model.kv_share}
    seen = set()
    for index, layer in enumerate(group.layers):
        where = f"{path}.layers[{index}]"
        if layer >= model.num_layers:
            raise Contradiction(f"layer {layer} of {model.num_layers}", where)
        if layer in seen:
            raise Contradiction(f"layer {layer} is there twice", where)
        if layer in sharing:
            raise Contradiction(f"layer {layer} reads another by model.kv_share", where)
        seen.add(layer)


_COUNTED_APART: Final = ("cross", "ring", "sliding_window_mla")
"""Kinds of which a layer may have one beside others with the same roles."""


def _check_layers_held_once(descriptor: Descriptor) -> None:
    """A layer's role is in one group; what the engine rebuilds from it may be in another.

    Cross attention counts as a layer of its own, and so do rings, which hold other positions, and
    a window's latents beside compressed ones.
    Of pages that nobody describes, it is their writer that tells one from another.
    """
    held: dict[tuple[int, str, str, str, bool], int] = {}
    for index, group in enumerate(descriptor.groups):
        apart = group.kind if group.kind in _COUNTED_APART else ""
        for role in group.roles:
            writer = group.opaque if role.role == "page" else ""
            for layer in group.layers:
                key = (layer, role.role, apart, writer, group.transferable)
                other = held.setdefault(key, index)
                if other != index:
                    raise Contradiction(
                        f"{role.role!r} of layer {layer} is in groups[{other}] too",
                        f"groups[{index}].layers",
                    )


def _check_tables(descriptor: Descriptor) -> None:
    """One list of block ids serves all groups of a table, so they must read it alike."""
    num_blocks = {pool.id: pool.num_blocks for pool in descriptor.pools}
    first: dict[int, tuple[int, dict[str, object]]] = {}
    for index, group in enumerate(descriptor.groups):
        sizes = set()
        for number, place in enumerate(group.places):
            for pool in place.pools:
                if pool not in num_blocks:
                    path = f"groups[{index}].places[{number}].pools"
                    raise Contradiction(f"there is no pool {quote(pool)}", path)
                sizes.add(num_blocks[pool])
        path = f"groups[{index}].table"
        if len(sizes) > 1:
            raise Contradiction(f"pools of {sorted(sizes)[:4]} blocks in one table", path)
        if group.null_block is not None and group.null_block >= min(sizes):
            raise Contradiction(
                f"block {group.null_block} of {min(sizes)}", f"groups[{index}].null_block"
            )
        reading: dict[str, object] = {
            "tokens_per_block": group.tokens_per_block,
            "null_block": group.null_block,
            "owner.tokens": group.owner.tokens,
            "num_blocks of the pools": sizes,
        }
        other, expected = first.setdefault(group.table, (index, reading))
        for field, value in reading.items():
            if value != expected[field]:
                raise Contradiction(f"differs from groups[{other}] in {field}", path)
