"""How much of a prompt the owners of one layout can load, as their engines would find it.

What counts follows vLLM 0.32.0: `KVCacheManager.get_computed_blocks` leaves the last token to be
computed; `HybridKVCacheCoordinator.find_longest_cache_hit` ends at the longest common multiple of
block sizes up to which every group can be loaded; connectors go on from there with what lower
tiers hold.
"""

import math
from collections.abc import Mapping, Sequence

from transload_router.core.index.holders import Place
from transload_router.core.index.owner import Group, Layout
from transload_router.core.index.predictions import Predictions
from transload_router.core.index.table import PART_SHIFT, Table, new_table
from transload_router.core.index.walk import (
    Reach,
    claimed_onward,
    held_onward,
    held_prefix,
    loadable_ends,
)
from transload_router.core.kv_events.events import GPU
from transload_router.core.prompt import Prompt

Tables = Mapping[Place, Table]
# Owners by the number of tokens they reach; masks are disjoint, owners in none reach none.
TokenReach = list[tuple[int, int]]

_NO_TABLE = new_table()


class Reached:
    """What the owners of one layout reach, by tier.

    Attributes:
        gpu: In the GPU, by events.
        any_tier: In any tier, by events.
        predicted: In the GPU once requests on their way have been computed; None where no
            request is.
    """

    __slots__ = ("any_tier", "gpu", "predicted")

    def __init__(self, gpu: TokenReach, any_tier: TokenReach, predicted: TokenReach | None) -> None:
        self.gpu = gpu
        self.any_tier = any_tier
        self.predicted = predicted


def reach(
    tables: Tables, predictions: Predictions, layout: Layout, owners: int, prompt: Prompt
) -> Reached:
    """How far each of the owners gets with a prompt.

    Args:
        tables: Holders of blocks, by tier and group.
        predictions: What requests on their way will leave behind.
        layout: What pools the owners have.
        owners: Mask of those with this layout.
        prompt: Whose blocks to look for.
    """
    groups, lower = layout
    if len(groups) == 1 and groups[0].num_needed_blocks is None:
        return _dense(tables, predictions, groups[0], lower, owners, prompt)
    return _hybrid(tables, predictions, groups, lower, owners, prompt)


def _dense(
    tables: Tables,
    predictions: Predictions,
    group: Group,
    lower: Sequence[tuple[Place, int]],
    owners: int,
    prompt: Prompt,
) -> Reached:
    size = group.block_size
    keys = prompt.keys(size)
    num_blocks = (prompt.num_tokens - 1) // size
    table = tables.get((GPU, group.group_idx), _NO_TABLE)
    held = held_prefix(table, keys, owners, num_blocks)
    gpu = [(mask, count * size) for mask, count in held]
    predicted = None
    claimants = predictions.claimants & owners
    if claimants:
        starts = _with_rest([(mask & claimants, count) for mask, count in held], claimants)
        promised = claimed_onward(predictions.table, keys, starts, num_blocks)
        predicted = [(mask, count * size) for mask, count in promised]
    any_tier = gpu
    for lower_size in sorted({size for place, size in lower if place[1] == group.group_idx}):
        below = [
            tables[place]
            for place, size in lower
            if size == lower_size and place[1] == group.group_idx
        ]
        any_tier = _go_on(below, lower_size, any_tier, owners, prompt)
    return Reached(gpu, any_tier, predicted)


def _go_on(
    tables: Sequence[Table], size: int, so_far: TokenReach, owners: int, prompt: Prompt
) -> TokenReach:
    """From where owners are, on with the blocks of lower tiers; a block may begin before that."""
    starts: dict[int, int] = {}
    whole = prompt.num_tokens // size * size
    for mask, tokens in _with_rest(so_far, owners):
        if whole - tokens < size:
            # Less than a block is left to load: `_lookup_complete_chunks` in
            # kv_transfer/kv_connector/v1/offloading/scheduler.py @ vLLM 0.32.0.
            continue
        starts[tokens // size] = starts.get(tokens // size, 0) | mask
    onward = held_onward(
        tables,
        prompt.keys(size),
        [(mask, start) for start, mask in starts.items()],
        (prompt.num_tokens - 1) // size,
    )
    return _furthest(so_far, [(mask, count * size) for mask, count in onward])


def _furthest(one: TokenReach, other: TokenReach) -> TokenReach:
    """Of both, what is more for each owner."""
    result: TokenReach = []
    for mask, tokens in sorted(one + other, key=lambda entry: entry[1], reverse=True):
        for taken, _ in result:
            mask &= ~taken
        if mask:
            result.append((mask, tokens))
    return result


def _with_rest(reach: Reach, owners: int) -> Reach:
    """The same, with the owners that are in no entry at 0."""
    for mask, _ in reach:
        owners &= ~mask
    return [*reach, (owners, 0)] if owners else reach


def _hybrid(
    tables: Tables,
    predictions: Predictions,
    groups: Sequence[Group],
    lower: Sequence[tuple[Place, int]],
    owners: int,
    prompt: Prompt,
) -> Reached:
    step = math.lcm(*(group.block_size for group in groups))
    top = (prompt.num_tokens - 1) // step * step
    held = [
        _holders(tables.get((GPU, group.group_idx), _NO_TABLE), group, prompt, top)
        for group in groups
    ]
    gpu = _common_ends(groups, held, step, owners)
    predicted = None
    claimants = predictions.claimants & owners
    if claimants:
        promised = [
            _united(masks, _holders(predictions.table, group, prompt, top))
            for group, masks in zip(groups, held, strict=True)
        ]
        predicted = _common_ends(groups, promised, step, claimants)
    if not lower:
        return Reached(gpu, gpu, predicted)
    below = [_below(tables, lower, group, prompt, top) for group in groups]
    any_tier = gpu
    for mask, tokens in _with_rest(gpu, owners):
        loadable = [
            _beyond(group, ours, theirs, tokens, owners)
            for group, ours, theirs in zip(groups, held, below, strict=True)
        ]
        any_tier = _furthest(any_tier, _common_ends(groups, loadable, step, mask))
    return Reached(gpu, any_tier, predicted)


def _holders(table: Table, group: Group, prompt: Prompt, top: int) -> list[int]:
    keys = prompt.keys(group.block_size)[: top // group.block_size]
    return [table[key >> PART_SHIFT].get(key, 0) for key in keys]


def _united(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [ours | theirs for ours, theirs in zip(one, other, strict=True)]


def _below(
    tables: Tables, lower: Sequence[tuple[Place, int]], group: Group, prompt: Prompt, top: int
) -> list[int]:
    """Owners of the group's blocks in lower tiers, where those are of the GPU's block size."""
    masks = [0] * (top // group.block_size)
    for place, size in lower:
        if place[1] == group.group_idx and size == group.block_size:
            masks = _united(masks, _holders(tables[place], group, prompt, top))
    return masks


def _beyond(
    group: Group, held: Sequence[int], below: Sequence[int], tokens: int, owners: int
) -> list[int]:
    """Who can load a block when the GPU's hit ends at `tokens` and a connector goes on."""
    first = tokens // group.block_size
    if group.num_needed_blocks is None:
        return [owners] * first + list(below[first:])
    return _united(held[:first], below[:first]) + list(below[first:])


def _common_ends(
    groups: Sequence[Group], holders: Sequence[Sequence[int]], step: int, owners: int
) -> TokenReach:
    """The last multiple of `step` up to which all groups can be loaded, by owners."""
    ends = [
        (group.block_size, loadable_ends(masks, owners, group.num_needed_blocks))
        for group, masks in zip(groups, holders, strict=True)
    ]
    reach: TokenReach = []
    top = min((len(one) - 1) * size for size, one in ends)
    for tokens in range(top // step * step, 0, -step):
        able = owners
        for size, one in ends:
            able &= one[tokens // size]
        if able:
            reach.append((able, tokens))
            owners ^= able
            if not owners:
                break
    return reach
