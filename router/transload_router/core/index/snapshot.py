"""The index as bytes, so that a router that starts anew need not start blind.

Format, version 1, integers little-endian::

    0   16  magic, "transload-index" and a zero byte
    16   4  version
    20   8  xxh3-64 of all bytes from 28 on
    28   -  msgpack: an array of owners, each an array of the fields of `SavedOwner` in order

A reader refuses other versions and whatever does not check; a writer that changes the fields or
the recipe of keys raises the version. Keys are 8 bytes each, in the order of the names.
"""

import struct
from typing import Annotated

import msgspec
import xxhash

from transload_router.core.index.holders import Holders
from transload_router.core.index.owner import MAX_ADAPTERS, MAX_POOLS, Group, Owner, Pool
from transload_router.core.kv_events.events import BlockHash
from transload_router.core.kv_events.messages import SnapshotLoaded
from transload_router.core.types import DestinationKey

_HEAD = struct.Struct("<16sIQ")
_MAGIC = b"transload-index\x00"
VERSION = 1
# Engines in one snapshot, ranks counted apart.
MAX_OWNERS = 65_536

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Sequence = Annotated[int, msgspec.Meta(ge=0)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class SnapshotError(ValueError):
    """Bytes that are no snapshot of this version; the message says why."""


class SavedPool(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One tier, group and block size.

    Attributes:
        keys: 8 bytes for each name.
        copies: Number of a name and its further copies, where there are any.
        adapters: Adapter, and the numbers of its names.
    """

    medium: _Text
    group_idx: _Index
    block_size: _Size
    names: list[BlockHash]
    keys: bytes
    copies: list[tuple[_Index, _Size]]
    adapters: list[tuple[_Text, list[_Index]]]


class SavedOwner(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One destination.

    Attributes:
        position: Sequence, time and wholeness of its stream.
        groups: Group, block size and needed blocks (0 for all).
    """

    engine_id: _Text
    rank: _Index
    model: _Text
    position: tuple[_Sequence, float, bool] | None
    groups: Annotated[list[tuple[_Index, _Size, _Index]], msgspec.Meta(max_length=MAX_POOLS)]
    adapter_ids: Annotated[dict[_Text, int], msgspec.Meta(max_length=MAX_ADAPTERS)]
    pools: Annotated[list[SavedPool], msgspec.Meta(max_length=MAX_POOLS)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    Annotated[list[SavedOwner], msgspec.Meta(max_length=MAX_OWNERS)]
).decode


def encode(owners: list[Owner]) -> bytes:
    """Write a snapshot."""
    body = _encode([_saved(owner) for owner in owners])
    return _HEAD.pack(_MAGIC, VERSION, xxhash.xxh3_64_intdigest(body)) + body


def _saved(owner: Owner) -> SavedOwner:
    at = owner.position
    return SavedOwner(
        *owner.key,
        model=owner.model,
        position=None if at is None else (at.seq, at.timestamp_s, at.is_whole),
        groups=[
            (group.group_idx, group.block_size, group.num_needed_blocks or 0)
            for group in owner.groups.values()
        ],
        adapter_ids=owner.adapter_ids,
        pools=[_saved_pool(pool) for pool in owner.pools.values()],
    )


def _saved_pool(pool: Pool) -> SavedPool:
    number = {name: index for index, name in enumerate(pool.names)} if pool.copies else {}
    adapters: dict[str, list[int]] = {}
    if pool.adapters:
        for index, name in enumerate(pool.names):
            adapter = pool.adapters.get(name)
            if adapter is not None:
                adapters.setdefault(adapter, []).append(index)
    return SavedPool(
        *pool.place,
        pool.block_size,
        names=list(pool.names),
        keys=struct.pack(f"<{len(pool.names)}Q", *pool.names.values()),
        copies=[(number[name], count) for name, count in pool.copies.items()],
        adapters=list(adapters.items()),
    )


def decode(data: bytes, max_blocks: int) -> dict[DestinationKey, SavedOwner]:
    """Read a snapshot, all of it or nothing.

    Args:
        data: What `encode` wrote.
        max_blocks: More than that, over all owners, is refused.

    Raises:
        SnapshotError: See there.
    """
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise SnapshotError("not a snapshot of an index")
    _, version, check = _HEAD.unpack_from(data)
    if version != VERSION:
        raise SnapshotError(f"version {version} of a snapshot; this router reads {VERSION}")
    body = memoryview(data)[_HEAD.size :]
    if xxhash.xxh3_64_intdigest(body) != check:
        raise SnapshotError("a snapshot that is damaged or cut short")
    try:
        saved = _decode(body)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"a snapshot of another form: {error}") from error
    _check(saved, max_blocks)
    return {(owner.engine_id, owner.rank): owner for owner in saved}


def _check(saved: list[SavedOwner], max_blocks: int) -> None:
    pools = [pool for owner in saved for pool in owner.pools]
    num_blocks = sum(len(pool.names) for pool in pools)
    if num_blocks > max_blocks:
        raise SnapshotError(f"{num_blocks} blocks in a snapshot are more than {max_blocks}")
    for pool in pools:
        num_names = len(pool.names)
        numbers = [index for index, _ in pool.copies]
        numbers += [index for _, indices in pool.adapters for index in indices]
        if len(pool.keys) != 8 * num_names or max(numbers, default=-1) >= num_names:
            raise SnapshotError("names, keys, copies and adapters of a pool do not fit")
        if len(set(pool.names)) < num_names:
            raise SnapshotError("a name stands twice in a pool")
    for owner in saved:
        places = {(pool.medium, pool.group_idx, pool.block_size) for pool in owner.pools}
        if len(places) < len(owner.pools):
            raise SnapshotError("a pool stands twice")
    if len({(owner.engine_id, owner.rank) for owner in saved}) < len(saved):
        raise SnapshotError("an owner stands twice")


def restore(owner: Owner, saved: SavedOwner, holders: Holders) -> None:
    """Give an owner without blocks what was saved of it."""
    for group_idx, block_size, needed in saved.groups:
        owner.groups[group_idx] = Group(group_idx, block_size, needed or None)
    owner.shown.update(owner.groups)
    owner.adapter_ids.update(saved.adapter_ids)
    owner.position = None if saved.position is None else SnapshotLoaded(*saved.position)
    for one in saved.pools:
        pool = owner.pool(holders, (one.medium, one.group_idx), one.block_size)
        assert pool is not None
        keys = list(struct.unpack(f"<{len(one.names)}Q", one.keys))
        pool.names.update(zip(one.names, keys, strict=True))
        pool.copies.update((one.names[index], count) for index, count in one.copies)
        for adapter, indices in one.adapters:
            pool.adapters.update((one.names[index], adapter) for index in indices)
        holders.join(pool.table, keys, owner.slot)
        holders.num_blocks += len(keys)
