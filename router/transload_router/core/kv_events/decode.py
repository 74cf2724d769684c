"""Event bytes of every vLLM version to typed events.

A payload is a msgpack array `[ts, events, data_parallel_rank]`, shorter or longer by version.
Events are arrays `["BlockStored", hashes, ...]` through vLLM 0.23 and maps with a `type` from 0.24,
fields being appended over the versions; what is absent is at its default, what is unknown is
ignored.

**What vLLM 0.32 emits** (`v1/core/block_pool.py`, `v1/core/sched/scheduler.py:update_from_output`)

- One batch per engine step that had events: the GPU pool's first, then the connector's.
- `BlockRemoved` of the GPU pool carries one hash, one physical copy of it, and precedes the
  `BlockStored` whose blocks took the place. The same hash may be stored, and removed, several
  times: blocks are not deduplicated.
- `BlockStored` of the GPU pool covers consecutive full blocks of one request and group. Groups
  that skip blocks (sliding window, Mamba) leave their hashes out but not their tokens, so hashes
  and tokens cannot be paired; it may even carry tokens and no hash at all. A partial block is
  announced with a `block_size` of its own.
- A request that asks for full reports (`kv_cache_report_mode`) has its cached prefix announced
  once more, as `BlockStored` from the prompt's start, though no copy was added.
- Lower tiers (`kv_transfer/kv_connector/v1/offloading/events.py`) say `block_size` 0, no parent
  and no tokens unless `self_describing_kv_events` is on. With it, overlapping chunks announce a
  shared block once each, and one `BlockRemoved` carries several hashes, with repeats.
- `AllBlocksCleared` is the GPU pool's; it waits for the next step with events.

**Rules**

1. Each event is judged by itself: what cannot be true is skipped and counted, the rest stands.
2. Hashes are never paired with tokens on a guess. An event whose tokens go beyond its hashes by
   whole blocks keeps its hashes, without tokens; any other mismatch is malformed.
3. Removals that follow each other from one place, an event per block as vLLM sends them, become
   one `Removed` with all their blocks in order: a third of what a full cache's events cost is
   theirs (bench/flood.py).
4. Nothing but `BadBatch` leaves this module.
"""

import math
from typing import Annotated, Any

import msgspec

from transload_router.core.kv_events.events import (
    GPU,
    Batch,
    BlockHash,
    Cleared,
    Event,
    Removed,
    Stored,
)

# A step that stores a million tokens is some 5 MB.
MAX_PAYLOAD_BYTES = 64 << 20
# Hybrid models inflate blocks to hundreds of tokens; a block of a million is no block.
MAX_BLOCK_SIZE = 1 << 20
# sha256 is 32 bytes, the longest of vLLM's hash functions.
MAX_HASH_BYTES = 64
MAX_NAME_CHARS = 256

# Python's own `hash`, an engine's default until vLLM 0.10, is negative as often as not.
_Hash = int | Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_HASH_BYTES)]
_Token = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
_BlockSize = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_SIZE)]
_Small = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF)]
_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class BadBatch(ValueError):
    """A payload that is not a batch of events at all."""


class _Stored(msgspec.Struct, tag_field="type", tag="BlockStored", gc=False):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None = None
    token_ids: list[_Token] | None = None
    block_size: _BlockSize | None = None
    lora_id: int | None = None
    medium: _Name | None = None
    lora_name: _Name | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: _Small | None = None
    kv_cache_spec_kind: _Name | None = None
    kv_cache_spec_sliding_window: _Small | None = None
    locality: _Name | None = None
    ownership: _Name | None = None
    session_id: _Name | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="BlockRemoved", gc=False):
    block_hashes: list[_Hash]
    medium: _Name | None = None
    group_idx: _Small | None = None
    # Proposed upstream under this name: vllm-project/vllm pull request 48933.
    remaining_copy_counts: list[_Small] | None = None


class _Cleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared", gc=False):
    pass


class _StoredArray(_Stored, array_like=True, tag_field="type", tag="BlockStored", gc=False):
    pass


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: list[_Hash]
    medium: _Name | None = None
    # A list of remaining copies may stand at the end, wherever that is.
    group_idx: _Small | list[_Small] | None = None
    extra_1: Any = None
    extra_2: Any = None
    extra_3: Any = None


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


_Wire = _Stored | _Removed | _Cleared | _StoredArray | _RemovedArray | _ClearedArray


class _MapBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_Stored | _Removed | _Cleared]
    rank: Any = None


class _ArrayBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    rank: Any = None


class _RawBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    rank: Any = None


_decode_maps = msgspec.msgpack.Decoder(_MapBatch).decode
_decode_arrays = msgspec.msgpack.Decoder(_ArrayBatch).decode
_decode_raw = msgspec.msgpack.Decoder(_RawBatch).decode
_decode_map = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared).decode
_decode_array = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray).decode

# What msgspec raises for bytes from outside: DecodeError is a ValueError, deep nesting is a
# RecursionError.
_UNREADABLE = (ValueError, RecursionError)
_CLEARED = Cleared()


def decode_batch(payload: bytes) -> Batch:
    """Read one message's payload.

    Raises:
        BadBatch: It is larger than `MAX_PAYLOAD_BYTES`, no msgpack, or not `[ts, events, ...]`.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise BadBatch(f"{len(payload)} bytes of events are more than {MAX_PAYLOAD_BYTES}")
    wire: list[_Wire | None]
    try:
        # Whole batches of one form and without a fault, the rule, are read in one go.
        batch: _MapBatch | _ArrayBatch | _RawBatch = _decode_maps(payload)
        wire = [*batch.events]
    except _UNREADABLE:
        try:
            batch = _decode_arrays(payload)
            wire = [*batch.events]
        except _UNREADABLE:
            batch, wire = _decode_one_by_one(payload)
    if not math.isfinite(batch.ts):
        raise BadBatch(f"the time of a batch of events is {batch.ts}")
    events: list[Event] = []
    num_skipped = 0
    removals: _Removed | None = None
    for item in wire:
        if removals is not None and type(item) is _Removed and _goes_with(item, removals):
            removals.block_hashes += item.block_hashes
            continue
        try:
            event = None if item is None else _event(item)
        except _Malformed:
            item = event = None
        removals = item if type(item) is _Removed and event is not None else None
        if event is not None:
            events.append(event)
        elif item is None:
            num_skipped += 1
    rank = batch.rank if type(batch.rank) is int and batch.rank >= 0 else None
    return Batch(batch.ts, events, rank, num_skipped)


class _Malformed(Exception):
    """An event that cannot be true."""


def _goes_with(removal: _Removed, before: _Removed) -> bool:
    """Whether it takes blocks out of the same place, and neither says how many copies are left."""
    return (
        removal.medium == before.medium
        and removal.group_idx == before.group_idx
        and removal.remaining_copy_counts is None
        and before.remaining_copy_counts is None
    )


def _decode_one_by_one(payload: bytes) -> tuple[_RawBatch, list[_Wire | None]]:
    """The batch with its readable events; None stands for each of the others."""
    try:
        batch = _decode_raw(payload)
    except _UNREADABLE as error:
        raise BadBatch(f"not a batch of events: {error}") from error
    wire: list[_Wire | None] = []
    for raw in batch.events:
        view = memoryview(raw)
        # fixarray, array 16, array 32; anything else is a map or fails as one.
        is_array = view[0] & 0xF0 == 0x90 or view[0] in (0xDC, 0xDD)
        try:
            wire.append(_decode_array(raw) if is_array else _decode_map(raw))
        except _UNREADABLE:
            wire.append(None)
    return batch, wire


def _event(wire: _Wire) -> Event | None:
    """The event, or None where it says nothing."""
    if isinstance(wire, _Stored):
        return _stored(wire)
    if isinstance(wire, _Removed):
        return _removed(wire, wire.group_idx, wire.remaining_copy_counts)
    if isinstance(wire, _RemovedArray):
        group_idx = wire.group_idx if isinstance(wire.group_idx, int) else None
        rest = (wire.group_idx, wire.extra_1, wire.extra_2, wire.extra_3)
        counts = next((part for part in rest if isinstance(part, list)), None)
        return _removed(wire, group_idx, counts)
    return _CLEARED


def _stored(wire: _Stored) -> Stored | None:
    hashes: list[BlockHash] = wire.block_hashes
    num_blocks = len(hashes)
    if not num_blocks:
        return None
    parent = wire.parent_block_hash
    if num_blocks > 1:
        distinct = set(hashes)
        if len(distinct) != num_blocks or parent in distinct:
            raise _Malformed
    elif parent == hashes[0]:
        raise _Malformed
    tokens: list[int] = wire.token_ids or []
    extra_keys = wire.extra_keys or None
    if extra_keys is not None and len(extra_keys) != num_blocks:
        raise _Malformed
    block_size = wire.block_size or 0
    if tokens and len(tokens) != num_blocks * block_size:
        if not block_size or len(tokens) % block_size or len(tokens) < num_blocks * block_size:
            raise _Malformed
        # Skipped blocks are among them: nobody says which, nor that the parent is the first's.
        tokens, parent = [], None
    return Stored(
        hashes,
        parent,
        tokens,
        block_size,
        wire.lora_id,
        wire.lora_name,
        wire.medium.upper() if wire.medium else GPU,
        extra_keys,
        wire.group_idx or 0,
        wire.kv_cache_spec_kind,
        wire.kv_cache_spec_sliding_window,
        wire.locality,
        wire.ownership,
        wire.session_id,
    )


def _removed(
    wire: _Removed | _RemovedArray, group_idx: int | None, counts: list[Any] | None
) -> Removed | None:
    hashes: list[BlockHash] = wire.block_hashes
    if not hashes:
        return None
    if counts is not None and (
        len(counts) != len(hashes) or any(type(n) is not int or n < 0 for n in counts)
    ):
        raise _Malformed
    medium = wire.medium.upper() if wire.medium else GPU
    return Removed(hashes, medium, group_idx or 0, counts)
