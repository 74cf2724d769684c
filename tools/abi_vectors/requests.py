"""A request's tokens in a cache: what each of its states holds, and the slots it lies in.

A state's elements depend on nothing but layer, role, head and position, so caches that hold parts
of the same request agree without anything being copied between them.
"""

from __future__ import annotations

import numpy as np

from abi_vectors.numbers import elements, factor_of, products, scale_elements, scale_of
from abi_vectors.pages import Array, Cache, Group, View, kind, read, write
from abi_vectors.rounding import nearest, quotients, stored_int4, stored_under_scales
from abi_vectors.transfers import Blocks, ConvertCase

_SEEDS = (
    *("k", "v", "k_scale", "v_scale", "latent", "latent_scale", "rope", "conv", "ssm"),
    *("k_group_scale", "v_group_scale", "k_code", "k_norm", "v_code", "v_zero", "index_k"),
    *("index_k_scale", "position", "state_kv", "state_score", "ssm_h", "conv_q", "conv_k"),
    *("conv_v", "conv_x", "conv_b", "conv_c", "page", "index_state_kv", "index_state_score"),
)


def fill_source(cache: Cache, blocks: Blocks, case: ConvertCase) -> None:
    """Writes all of the request into the blocks that it has at a source."""
    for group in cache.groups.values():
        slots = _slots(group, case)
        for position in range(len(group.document["layers"])):
            for view in group.views:
                found = _original(group, view, position, case)
                _write(group, view, position, blocks, slots, found)


def fill_destination(case: ConvertCase) -> None:
    """Writes what the destination's blocks hold after the transfer."""
    blocks = {table: ids[case.unseen_blocks :] for table, ids in case.dst_blocks.items()}
    for group in case.dst.groups.values():
        if not group.document.get("transferable", True):
            continue
        slots = _slots(group, case)
        wanted = np.where(slots >= _first_state(group, case), slots, -1)
        for position in range(len(group.document["layers"])):
            for view in group.views:
                found = _received(group, view, position, case)
                _write(group, view, position, blocks, wanted, found)


def _counted(group: Group, case: ConvertCase) -> int:
    """How many tokens the group counts."""
    if group.document["kind"] == "cross" and case.num_encoder_tokens is not None:
        return case.num_encoder_tokens
    return case.num_tokens


def _turns(group: Group) -> tuple[int, int, int]:
    """The rank, the number of ranks, and how many tokens, or pages, each has in its turn."""
    given = group.document.get("owner", {}).get("tokens", {})
    return given.get("rank", 0), given.get("size", 1), given.get("interleave", 1)


def _tokens_per_state(group: Group) -> list[int]:
    """A page of which nobody knows the inside is one state of all ranks' tokens."""
    if group.views[0].role == "page":
        return [group.document["tokens_per_block"] * _turns(group)[1], 1]
    given: list[int] = group.document.get("tokens_per_state", [1, 1])
    return given


def _num_states(group: Group, case: ConvertCase) -> int:
    """States with a token of the request."""
    tokens, states = _tokens_per_state(group)
    return -int(-_counted(group, case) * states // tokens)


def _first_state(group: Group, case: ConvertCase) -> int:
    """The first state that a destination takes."""
    tokens, states = _tokens_per_state(group)
    kind = group.document["kind"]
    if kind == "recurrent":
        return _num_states(group, case) - 1
    if kind == "ring" or (kind == "cross" and case.num_encoder_tokens is not None):
        return 0
    return int(case.first_token * states // tokens)


def _slots(group: Group, case: ConvertCase) -> Array:
    """For each slot of each block of the request's whole list the state in it; -1: none."""
    size = group.views[0].shape.get("N", 1)
    end, per_block = _num_states(group, case), group.document["tokens_per_block"]
    counted = _counted(group, case)
    rank, ranks, run = _turns(group)
    if group.views[0].role == "page":
        # The last page may have none of this rank's tokens.
        held = [page for page in range(end) if page * per_block * ranks + rank * run < counted]
    else:
        held = [state for state in range(end) if state // run % ranks == rank]
    if group.document["kind"] == "ring":
        window = group.document["window"]
        newest = {state % window: state for state in held}
        held = [newest[slot] for slot in sorted(newest)]
    if ranks > 1 and per_block % run == 0:
        num_blocks = -(-counted // (per_block * ranks))
    else:
        num_blocks = -(-len(held) // size)
    slots = np.full(num_blocks * size, -1)
    slots[: len(held)] = held
    return slots.reshape(num_blocks, size)


def _write(
    group: Group, view: View, position: int, blocks: Blocks, slots: Array, found: Array
) -> None:
    """Writes states `[heads, states, ...]` into the slots that they lie in."""
    ids = blocks[group.document.get("table", 0)]
    for block, states in zip(reversed(ids), reversed(slots), strict=False):
        here = states >= 0
        if block == group.document.get("null_block") or not here.any():
            continue
        page = read(view, position, block)
        if view.role == "page":
            page = found[states[0]]
        elif "H" in view.axes:
            page[:, here] = found[:, states[here]]
        else:
            page[here] = found[states[here]]
        write(view, position, block, page)


def _received(group: Group, view: View, position: int, case: ConvertCase) -> Array:
    """A role's elements at the destination: of the heads that its group holds."""
    base = view.role.removesuffix("_scale").removesuffix("_group")
    if base not in case.change:
        return _original(group, view, position, case)
    values = _source_values(group, base, position, case)
    factor, scale_view = factor_of(group, base, position), scale_of(group, base)
    if scale_view is None:
        return nearest(values if factor is None else quotients(values, factor), view.dtype)
    dtype = group.view(base).dtype
    if group.document["codec"]["id"] == "int4_zero_point":
        own, scales = stored_int4(values)
    else:
        count = scale_view.shape.get("G", 1)
        own, scales = stored_under_scales(values, dtype, scale_view.dtype, count, factor)
        scales = scales if "G" in scale_view.axes else scales[..., 0]
    return own if view.role == base else scales


def _source_values(group: Group, role: str, position: int, case: ConvertCase) -> Array:
    """The values of a role at whichever source has the layer."""
    layer = group.document["layers"][position]
    source = next(
        each
        for one in case.sources
        for each in one.cache.groups.values()
        if layer in each.document["layers"] and any(view.role == role for view in each.views)
    )
    at, scale_view = source.document["layers"].index(layer), scale_of(source, role)
    heads = group.document.get("owner", {}).get("heads", [0, 1, 1])
    own = _original(source, source.view(role), at, case, heads)
    scales = _original(source, scale_view, at, case, heads) if scale_view else None
    return products(source, role, at, own, scales)


def _original(
    group: Group, view: View, position: int, case: ConvertCase, heads: list[int] | None = None
) -> Array:
    """A role's elements for one layer, `[heads, states of the request, ...]`.

    Args:
        group: Where.
        view: Of the role.
        position: Of the layer.
        case: The request.
        heads: First, end and number of all; those that the group holds by default.
    """
    layer, end = group.document["layers"][position], _num_states(group, case)
    first, last, total = heads or group.document.get("owner", {}).get("heads", [0, 1, 1])
    rest = tuple(view.shape[axis] for axis in view.shape if axis not in "HN")
    per_head = []
    for head in range(total):
        seed = (layer * 16 + _SEEDS.index(view.role)) * 64 + head
        if view.role in case.patterns:
            bits = np.array(case.patterns[view.role], kind(view.dtype))
            found = np.resize(bits, (end, *rest))
        elif view.role.endswith("_scale"):
            found = scale_elements(view.dtype, (end, *rest), seed)
        else:
            found = elements(view.dtype, (end, *rest), seed, is_plain=True)
        found[list(case.zeros)] = 0
        per_head.append(found)
    return np.stack(per_head)[first:last] if "H" in view.axes else per_head[0]
