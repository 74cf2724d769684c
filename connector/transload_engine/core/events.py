"""KV events as vLLM 0.32.0 writes them (`vllm/distributed/kv_events.py`), and as older ones did."""

import enum
from typing import Any

import msgspec

BlockName = int | bytes
"""A block's hash as events carry it: an unsigned 64-bit integer, or 32 raw bytes."""


class EventForm(enum.StrEnum):
    """How an event is laid out in MessagePack: maps since vLLM 0.24, arrays before."""

    MAP = "map"
    ARRAY = "array"


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, frozen=True, gc=False):
    """Blocks that can be hit from now on, in their order in one prompt.

    Attributes:
        extra_keys: Per block, what besides the tokens went into its hash.
    """

    block_hashes: list[BlockName]
    parent_block_hash: BlockName | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, frozen=True, gc=False):
    """Physical blocks that were taken for something else; one copy of a hash each."""

    block_hashes: list[BlockName]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True, gc=False):
    """Everything is gone."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


def stored(
    hashes: list[BlockName],
    parent: BlockName | None,
    token_ids: list[int],
    block_size: int,
    extra_keys: list[tuple[str, ...] | None],
) -> BlockStored:
    """The event of a model without adapters whose every layer attends to everything."""
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=parent,
        token_ids=token_ids,
        block_size=block_size,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=extra_keys,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )


def removed(name: BlockName) -> BlockRemoved:
    """The event of one block; vLLM 0.32 names one in each."""
    return BlockRemoved(block_hashes=[name], medium="GPU", group_idx=0)


_encoder = msgspec.msgpack.Encoder()


def encode(timestamp_s: float, events: list[Event], rank: int, form: EventForm) -> bytes:
    """One message's payload: the events of one step.

    Args:
        timestamp_s: Seconds since the epoch.
        events: In the order in which they happened.
        rank: Data-parallel rank.
        form: Arrays have the fields of vLLM 0.16.0.
    """
    laid_out = events if form is EventForm.MAP else [_array(event) for event in events]
    return _encoder.encode((timestamp_s, laid_out, rank))


def _array(event: Event) -> list[Any]:
    match event:
        case BlockStored():
            return [
                "BlockStored",
                event.block_hashes,
                event.parent_block_hash,
                event.token_ids,
                event.block_size,
                event.lora_id,
                event.medium,
                event.lora_name,
            ]
        case BlockRemoved():
            return ["BlockRemoved", event.block_hashes, event.medium]
        case AllBlocksCleared():
            return ["AllBlocksCleared"]
