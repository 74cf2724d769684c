"""One of vLLM's specifications as groups of a descriptor: kind, places, codec, owner."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from transload_abi.builders.vllm_interior import PACKED, Interior
from transload_abi.builders.vllm_layout import Strides, strides
from transload_abi.builders.vllm_owner import Rank, owner_of
from transload_abi.builders.vllm_pages import pages
from transload_abi.builders.vllm_read import read_spec
from transload_abi.builders.vllm_roles import Page
from transload_abi.builders.vllm_spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    Spec,
)
from transload_abi.codecs import scale_param
from transload_abi.errors import Contradiction, MalformedDescriptor, UnknownPart
from transload_abi.floats import f32
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import Codec, Group, Kind, Memory, Model, Param, Place, Producer

Scales = Mapping[str, tuple[float, float]]
"""By layer name: the scales of K and V, or of a latent twice; binary32 values."""

NULL_BLOCK: Final = 0
"""The first block of vLLM's pools stands for "not held" (`block_pool.py` @ 0.32.0)."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of the rank and no part of its cache configuration.

    Attributes:
        model: Whose cache it is.
        rank: Which part of the model the rank holds.
        scales: Of every layer whose cache is in 8-bit floats with one scale, or in NVFP4.
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
    """The group of one specification's layers, where there is one: see `groups_of`.

    Raises:
        DescriptorError: Something in the specification cannot be described, or it is several.
    """
    found = groups_of(spec, layout, placed, facts=facts, interior=interior, table=table, pool=pool)
    if len(found) > 1:
        raise Contradiction(f"{len(found)} groups, not one", "interior.state_parts")
    return found[0]


def groups_of(
    spec: Spec | Mapping[str, Any],
    layout: str,
    placed: Placed,
    *,
    facts: Facts,
    interior: Interior = PACKED,
    table: int = 0,
    pool: str = "kv",
) -> tuple[Group, ...]:
    """The group of one specification's layers; unchecked, since its pool is elsewhere.

    Parts of a recurrent layer whose heads are counted differently are groups of their own.

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
    contents = pages(spec, where, interior)
    groups = []
    for content in contents:
        places = _places(spec, layout, placed, where, pool, content)
        if len(contents) > 1:
            content, places = _from_its_first_byte(content, places[0])
        groups.append(_group(spec, placed, facts, content, places, table, interior.opaque))
    return tuple(groups)


def _group(
    spec: Spec,
    placed: Placed,
    facts: Facts,
    content: Page,
    places: tuple[Place, ...],
    table: int,
    opaque: str,
) -> Group:
    kind, window = _kind(spec, content)
    return Group(
        id=f"{kind}.{table}",
        kind=kind,
        layers=tuple(layer_number(name, facts.layer_numbers) for name in placed.layers),
        tokens_per_block=spec.block_size,
        places=places,
        roles=content.roles,
        codec=_codec(content, placed, facts.scales),
        tokens_per_state=_state_tokens(spec),
        window=window,
        table=table,
        null_block=NULL_BLOCK,
        owner=owner_of(spec, facts.rank, _has_heads(spec, content), content.heads),
        opaque=opaque,
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


def _state_tokens(spec: Spec) -> tuple[int, int]:
    return (spec.block_size, 1) if isinstance(spec, MambaSpec) else spec.state_tokens


def _has_heads(spec: Spec, content: Page) -> bool:
    of_heads = not isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec | CircularBufferSpec)
    return any("H" in role.shape or (role.role == "page" and of_heads) for role in content.roles)


def _kind(spec: Spec, content: Page) -> tuple[Kind, int]:
    """The kind, and the window in tokens."""
    is_latent = any(role.role in ("latent", "page") for role in content.roles)
    if isinstance(spec, MambaSpec):
        return "recurrent", 0
    if isinstance(spec, CircularBufferSpec):
        return "ring", spec.block_size
    if isinstance(spec, SlidingWindowMLASpec) and is_latent:
        return "sliding_window_mla", spec.sliding_window
    if isinstance(spec, SlidingWindowSpec | SlidingWindowMLASpec):
        return "sliding_window", spec.sliding_window
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return "chunked_local", spec.attention_chunk_size
    if isinstance(spec, CrossAttentionSpec):
        return "cross", 0
    assert isinstance(spec, FullAttentionSpec), "no other class is left"
    window = spec.sliding_window or spec.attention_chunk_size or 0
    is_mla = isinstance(spec, MLAAttentionSpec) and is_latent
    return ("mla" if is_mla else "full"), window


def _places(
    spec: Spec, layout: str, placed: Placed, where: Strides, pool: str, content: Page
) -> tuple[Place, ...]:
    """One place, or one for each head slot where those are apart."""
    last = max(role.place for role in content.roles)
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


def _from_its_first_byte(content: Page, place: Place) -> tuple[Page, tuple[Place, ...]]:
    """A part of a page: it begins at its first byte, and no byte around it is its own."""
    first = min(role.base_bits for role in content.roles)
    roles = tuple(
        msgspec.structs.replace(role, base_bits=role.base_bits - first) for role in content.roles
    )
    moved = msgspec.structs.replace(place, offset=place.offset + first // 8, page_bytes=0)
    return content._replace(roles=roles), (moved,)


def _codec(content: Page, placed: Placed, scales: Scales) -> Codec:
    """The codec, with each layer's scales where those are outside of the pages."""
    params: dict[str, Param] = dict(content.params)
    missing = [layer for layer in placed.layers if layer not in scales]
    if content.scaled and missing:
        raise Contradiction(f"no scales for {missing[0][:MAX_QUOTED_CHARS]!r}", "scales")
    for side, role in enumerate(content.scaled):
        params[scale_param(role)] = _texts([scales[layer][side] for layer in placed.layers])
    return Codec(content.codec, params)


def _texts(scales: Sequence[float]) -> list[int | str]:
    try:
        return [f32(scale) for scale in scales]
    except ValueError as error:
        raise MalformedDescriptor(str(error), "scales") from error
