"""Descriptors of vLLM's caches, from the configuration that its engine tells its workers.

`descriptor` takes all of it; `group_of` is one specification alone. What is inside of a page is an
argument of its own, see `vllm_pages`: vLLM's configuration does not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from transload_abi.builders.vllm_layout import Strides, strides
from transload_abi.builders.vllm_owner import Rank, owner_of
from transload_abi.builders.vllm_pages import PACKED, Interior, page
from transload_abi.builders.vllm_read import read_config, read_spec
from transload_abi.builders.vllm_spec import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    Spec,
)
from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.codecs import scale_param
from transload_abi.errors import Contradiction, MalformedDescriptor, UnknownPart
from transload_abi.floats import f32
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import (
    VERSION,
    Codec,
    Descriptor,
    Group,
    Kind,
    Memory,
    Model,
    Param,
    Place,
    Pool,
    Producer,
)

Scales = Mapping[str, tuple[float, float]]
"""By layer name: the scales of K and V, or of a latent twice; binary32 values."""

NULL_BLOCK: Final = 0
"""The first block of vLLM's pools stands for "not held" (`block_pool.py` @ 0.32.0)."""

HOST_POOL: Final = "host"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of the rank and no part of its cache configuration.

    Attributes:
        model: Whose cache it is.
        rank: Which part of the model the rank holds.
        scales: Of every layer whose cache is in 8-bit floats with one scale.
        layer_numbers: The model's layer number of a layer name, where the name does not tell it.
        memory: Where the pool is.
        align: Bytes that the pool's start is aligned to.
        pool: Id of the pool.
        producer: For people.
    """

    model: Model
    rank: Rank = Rank()
    scales: dict[str, tuple[float, float]] = {}
    layer_numbers: dict[str, int] = {}
    memory: Memory = "device"
    align: int = 256
    pool: str = "kv"
    producer: Producer = Producer(engine="vllm")


class Placed(NamedTuple):
    """Layers of one specification in a pool; bytes.

    Attributes:
        layers: Their names, in the order of the placement.
        num_blocks: Of the pool.
        layer_stride, block_stride: None: as densely as the layout allows.
    """

    layers: tuple[str, ...]
    num_blocks: int
    layer_stride: int | None = None
    block_stride: int | None = None
    offset: int = 0


def descriptor(
    config: KVCacheConfig | Mapping[str, Any],
    *,
    facts: Facts,
    interior: Interior | Sequence[Interior] = PACKED,
    layout: str | None = None,
) -> Descriptor:
    """The checked, canonical descriptor of one rank's cache.

    Each cache group is a table, its number the group's place in the configuration; a group whose
    layers differ becomes one descriptor group for each specification, all with that table.

    Args:
        config: `KVCacheConfig` as `plain` gives it.
        facts: Of the model and the rank.
        interior: Of all groups, or one for each of `kv_cache_groups`.
        layout: As `LBHNC`; None: `config.kv_cache_layout`.

    Raises:
        DescriptorError: Something in the configuration cannot be described, or contradicts itself.
    """
    config = read_config(config)
    layout = layout or config.kv_cache_layout
    if layout is None:
        raise Contradiction("no layout, neither here nor as an argument", "kv_cache_layout")
    if isinstance(interior, Interior):
        interior = [interior] * len(config.kv_cache_groups)
    if len(interior) != len(config.kv_cache_groups):
        raise Contradiction(
            f"{len(interior)} interiors for {len(config.kv_cache_groups)} groups", "interior"
        )
    groups = _groups(config, facts, interior, layout)
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
    config: KVCacheConfig, facts: Facts, interiors: Sequence[Interior], layout: str
) -> list[Group]:
    """A group for each tensor of the configuration."""
    tables = _tables(config)
    groups = []
    for index, tensor in enumerate(config.kv_cache_tensors):
        table, spec = _one_spec(config, tables, tensor, f"kv_cache_tensors[{index}]")
        pool = HOST_POOL if tensor.host_resident else facts.pool
        num_blocks = _num_blocks(config, tensor)
        placed = Placed(
            tensor.layers, num_blocks, tensor.layer_stride, tensor.block_stride, tensor.offset
        )
        group = group_of(
            spec, layout, placed, facts=facts, interior=interiors[table], table=table, pool=pool
        )
        transferable = config.kv_cache_groups[table].enable_kv_transfer
        groups.append(msgspec.structs.replace(group, transferable=transferable))
    return groups


def group_of(
    spec: Spec | Mapping[str, Any],
    layout: str,
    placed: Placed,
    *,
    facts: Facts,
    interior: Interior = PACKED,
    table: int = 0,
    pool: str = "kv",
) -> Group:
    """The group of one specification's layers; unchecked, since its pool is elsewhere.

    Raises:
        DescriptorError: Something in the specification cannot be described.
    """
    spec = read_spec(spec)
    where = strides(
        spec,
        layout,
        len(placed.layers),
        placed.num_blocks,
        interior.kernel_block_size,
        placed.layer_stride,
        placed.block_stride,
    )
    content = page(spec, where, interior)
    kind, window = _kind(spec)
    names = [role.role for role in content.roles]
    last = max(role.place for role in content.roles)
    has_heads = any("H" in role.shape for role in content.roles)
    return Group(
        id=f"{kind}.{table}",
        kind=kind,
        layers=tuple(layer_number(name, facts.layer_numbers) for name in placed.layers),
        tokens_per_block=spec.block_size,
        places=_places(spec, layout, placed, where, pool, last),
        roles=content.roles,
        codec=_codec(content.codec, names, placed, facts.scales),
        tokens_per_state=(spec.block_size, 1) if isinstance(spec, MambaSpec) else spec.state_tokens,
        window=window,
        table=table,
        null_block=NULL_BLOCK,
        owner=owner_of(spec, facts.rank, has_heads),
    )


def layer_number(name: str, numbers: Mapping[str, int]) -> int:
    """The number in a name like `model.layers.12.self_attn.attn`.

    Args:
        name: Parts between dots; exactly one of them is a number.
        numbers: What names mean that do not tell it, or tell more than one.

    Raises:
        UnknownPart: The name has no number or several, and `numbers` does not have it.
    """
    if name in numbers:
        return numbers[name]
    found = [int(part) for part in name.split(".") if part.isascii() and part.isdigit()]
    if len(found) != 1:
        raise UnknownPart(
            f"{name[:MAX_QUOTED_CHARS]!r} has {len(found)} numbers, not one", "layer_names"
        )
    return found[0]


def _kind(spec: Spec) -> tuple[Kind, int]:
    """The kind, and the window in tokens."""
    if isinstance(spec, MambaSpec):
        return "recurrent", 0
    if isinstance(spec, SlidingWindowMLASpec):
        return "sliding_window_mla", spec.sliding_window
    if isinstance(spec, SlidingWindowSpec):
        return "sliding_window", spec.sliding_window
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return "chunked_local", spec.attention_chunk_size
    if isinstance(spec, CrossAttentionSpec):
        return "cross", 0
    assert isinstance(spec, FullAttentionSpec), "no other class is left"
    window = spec.sliding_window or spec.attention_chunk_size or 0
    return ("mla" if isinstance(spec, MLAAttentionSpec) else "full"), window


def _places(
    spec: Spec, layout: str, placed: Placed, where: Strides, pool: str, last: int
) -> tuple[Place, ...]:
    """One place, or one for each head slot where those are apart."""
    if where.is_whole:
        # Outside of blocks, a layer's blocks are padded; inside, its pages are.
        page_bytes = spec.page_bytes if layout[0] == "B" else where.block
    else:
        page_bytes = where.kernel_states * spec.cell_bytes if last else 0
    return tuple(
        Place(
            pools=(pool,),
            block_stride=where.block,
            layer_stride=where.layer if len(placed.layers) > 1 else 0,
            offset=placed.offset + slot * where.slot,
            page_bytes=page_bytes,
        )
        for slot in range(last + 1)
    )


def _codec(name: str, roles: Sequence[str], placed: Placed, scales: Scales) -> Codec:
    """The codec, with each layer's scales where those are outside of the pages."""
    if name != "fp8_per_tensor":
        return Codec(name)
    missing = [layer for layer in placed.layers if layer not in scales]
    if missing:
        raise Contradiction(f"no scales for {missing[0][:MAX_QUOTED_CHARS]!r}", "scales")
    params: dict[str, Param] = {}
    for side, role in enumerate(roles):
        try:
            params[scale_param(role)] = [f32(scales[layer][side]) for layer in placed.layers]
        except ValueError as error:
            raise MalformedDescriptor(str(error), "scales") from error
    return Codec(name, params)


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
        for name in group.layer_names:
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
                block_bytes=steps.pop() if layout[0] == "B" and len(steps) == 1 else 0,
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
