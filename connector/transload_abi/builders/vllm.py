"""Descriptors of vLLM's caches, from the configuration that its engine tells its workers.

`descriptor` takes all of it; `groups_of` is one specification alone. What is inside of a page is an
argument of its own, see `vllm_interior`: vLLM's configuration does not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from transload_abi.builders.vllm_group import (
    Facts,
    Placed,
    Scales,
    group_of,
    groups_of,
    layer_number,
)
from transload_abi.builders.vllm_interior import PACKED, Interior
from transload_abi.builders.vllm_read import read_config
from transload_abi.builders.vllm_spec import KVCacheConfig, KVCacheTensor, Spec
from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.errors import Contradiction
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import VERSION, Descriptor, Group, Pool

__all__ = ["Facts", "Placed", "Scales", "descriptor", "group_of", "groups_of", "layer_number"]

HOST_POOL: Final = "host"

Interiors = Interior | Sequence[Interior] | Mapping[str, Interior]
"""Of all layers; or one for each of `kv_cache_groups`; or by layer name, as one group may hold
several sorts of rows."""


def descriptor(
    config: KVCacheConfig | Mapping[str, Any],
    *,
    facts: Facts,
    interior: Interiors = PACKED,
    layout: str | None = None,
) -> Descriptor:
    """The checked, canonical descriptor of one rank's cache.

    Each cache group is a table, its number the group's place in the configuration; a group whose
    layers differ becomes one descriptor group for each specification, all with that table.

    Args:
        config: `KVCacheConfig` as `plain` gives it.
        facts: Of the model and the rank.
        interior: Of all layers, see `Interiors`.
        layout: As `LBHNC`; None: `config.kv_cache_layout`.

    Raises:
        DescriptorError: Something in the configuration cannot be described, or contradicts itself.
    """
    config = read_config(config)
    layout = layout or config.kv_cache_layout
    if layout is None:
        raise Contradiction("no layout, neither here nor as an argument", "kv_cache_layout")
    interiors = _by_layer(config, interior)
    groups = _groups(config, facts, interiors, layout)
    _check_placed(config, facts)
    found = Descriptor(
        abi=VERSION,
        model=facts.model,
        pools=_pools(config, facts, layout),
        groups=_named_apart(groups),
        producer=facts.producer
        if facts.producer.layout
        else msgspec.structs.replace(facts.producer, layout=layout),
    )
    check(found)
    return canonical(found)


def _groups(
    config: KVCacheConfig, facts: Facts, interiors: Mapping[str, Interior], layout: str
) -> list[Group]:
    """The groups of each tensor of the configuration that others could read."""
    tables = _tables(config)
    groups: list[Group] = []
    for index, tensor in enumerate(config.kv_cache_tensors):
        if _is_the_engines_own(config, tables, tensor):
            continue
        table, spec = _one_spec(config, tables, tensor, f"kv_cache_tensors[{index}]")
        pool = HOST_POOL if tensor.host_resident else facts.pool
        num_blocks = _num_blocks(config, tensor)
        placed = Placed(
            tensor.layers, num_blocks, tensor.layer_stride, tensor.block_stride, tensor.offset
        )
        found = groups_of(
            spec,
            layout,
            placed,
            facts=facts,
            interior=_one_interior(interiors, tensor, f"kv_cache_tensors[{index}]"),
            table=table,
            pool=pool,
        )
        transferable = config.kv_cache_groups[table].enable_kv_transfer
        groups += [msgspec.structs.replace(group, transferable=transferable) for group in found]
    return groups


def _by_layer(config: KVCacheConfig, interior: Interiors) -> Mapping[str, Interior]:
    """The interior of each layer."""
    if isinstance(interior, Mapping):
        return interior
    groups = config.kv_cache_groups
    each = [interior] * len(groups) if isinstance(interior, Interior) else interior
    if len(each) != len(groups):
        raise Contradiction(f"{len(each)} interiors for {len(groups)} groups", "interior")
    return {
        name: one for one, group in zip(each, groups, strict=True) for name in group.layer_names
    }


def _one_interior(interiors: Mapping[str, Interior], tensor: KVCacheTensor, path: str) -> Interior:
    """What all of a tensor's layers have."""
    missing = [name for name in tensor.layers if name not in interiors]
    if missing:
        raise Contradiction(f"no interior for {missing[0][:MAX_QUOTED_CHARS]!r}", "interior")
    found = interiors[tensor.layers[0]]
    if any(interiors[name] != found for name in tensor.layers):
        raise Contradiction("layers of several interiors", f"{path}.layers")
    return found


def _tables(config: KVCacheConfig) -> dict[str, int]:
    """The group of each layer."""
    tables: dict[str, int] = {}
    for number, group in enumerate(config.kv_cache_groups):
        for name in group.layer_names:
            if name in tables:
                raise Contradiction(
                    f"{name[:MAX_QUOTED_CHARS]!r} is in group {tables[name]} as well",
                    f"kv_cache_groups[{number}].layer_names",
                )
            tables[name] = number
    return tables


def _is_the_engines_own(
    config: KVCacheConfig, tables: Mapping[str, int], tensor: KVCacheTensor
) -> bool:
    """Whether no layer of a tensor has a specification."""
    found = [tables.get(name) for name in tensor.layers]
    return bool(found) and all(
        table is not None and not config.kv_cache_groups[table].specs for table in found
    )


def _one_spec(
    config: KVCacheConfig, tables: Mapping[str, int], tensor: KVCacheTensor, path: str
) -> tuple[int, Spec]:
    """The group and the specification that all of a tensor's layers have."""
    found: list[tuple[int, Spec]] = []
    for name in tensor.layers:
        table = tables.get(name)
        spec = None if table is None else config.kv_cache_groups[table].specs.get(name)
        if table is None or spec is None:
            raise Contradiction(f"{name[:MAX_QUOTED_CHARS]!r} is in no group", f"{path}.layers")
        found.append((table, spec))
    if not found:
        raise Contradiction("no layers", f"{path}.layers")
    if any(each != found[0] for each in found):
        raise Contradiction("layers of several groups or specifications", f"{path}.layers")
    return found[0]


def _check_placed(config: KVCacheConfig, facts: Facts) -> None:
    """Every layer has its memory, once, unless it reads another's."""
    placed = Counter(name for tensor in config.kv_cache_tensors for name in tensor.layers)
    readers = {reader for reader, _ in facts.model.kv_share}
    for number, group in enumerate(config.kv_cache_groups):
        for name in group.layer_names if group.specs else ():
            is_reader = layer_number(name, facts.layer_numbers) in readers
            if placed[name] != (0 if is_reader else 1):
                raise Contradiction(
                    f"{name[:MAX_QUOTED_CHARS]!r} is in {placed[name]} tensors, not in one",
                    f"kv_cache_groups[{number}].layer_names",
                )


def _num_blocks(config: KVCacheConfig, tensor: KVCacheTensor) -> int:
    if not tensor.host_resident:
        return config.num_blocks
    if config.hisparse_host_num_blocks is None:
        raise Contradiction("a tensor on the host needs it", "hisparse_host_num_blocks")
    return config.hisparse_host_num_blocks


def _pools(config: KVCacheConfig, facts: Facts, layout: str) -> tuple[Pool, ...]:
    """The rank's pool, and the one on the host if there is any."""
    host: Literal["host", "shared"] = "shared" if config.hisparse_shared_host_pool else "host"
    pools = []
    for on_host, name, memory in ((False, facts.pool, facts.memory), (True, HOST_POOL, host)):
        tensors = [each for each in config.kv_cache_tensors if each.host_resident is on_host]
        if not tensors:
            continue
        # In host memory layers are outermost, whatever the device's layout (`hisparse/layout.py`).
        by_block = layout[0] == "B" and not on_host
        steps = {tensor.block_stride for tensor in tensors}
        sizes = sorted({tensor.size for tensor in tensors})
        if len(sizes) > 1:
            raise Contradiction(f"one pool of {sizes[0]} and of {sizes[-1]} bytes", "size")
        pools.append(
            Pool(
                id=name,
                memory=memory,
                num_bytes=sizes[0],
                num_blocks=_num_blocks(config, tensors[0]),
                align=facts.align,
                block_bytes=steps.pop() if by_block and len(steps) == 1 else 0,
            )
        )
    return tuple(pools)


def _named_apart(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Groups of one kind and table get a letter each."""
    ids = [group.id for group in groups]
    named = []
    for index, group in enumerate(groups):
        if ids.count(group.id) > 1:
            letter = ids[:index].count(group.id)
            group = msgspec.structs.replace(group, id=f"{group.id}.{letter}")
        named.append(group)
    return tuple(named)
