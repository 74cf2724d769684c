"""From an engine's announcement to keys: whose tokens they are, and what else is in the blocks."""

from typing import Any

from transload_router.core.index.keys import chain_keys, encode_extra
from transload_router.core.index.owner import Owner
from transload_router.core.kv_events.events import Stored
from transload_router.core.prompt import pack_tokens


class RefusedError(ValueError):
    """An announcement contradicts itself."""


def adapter_of(event: Stored) -> str | None:
    """The adapter in a block's identity.

    Engines before 0.14 say an id without a name: no prompt asks for that, so nothing matches.
    """
    if event.lora_name is not None or event.lora_id is None:
        return event.lora_name
    return f"\x00{event.lora_id}"


def keys_of(event: Stored, parent: int) -> list[int]:
    """Keys of the event's blocks.

    Raises:
        RefusedError: Tokens, hashes or extra keys do not fit each other.
    """
    num_blocks = len(event.block_hashes)
    if event.block_size <= 0 or len(event.token_ids) != num_blocks * event.block_size:
        raise RefusedError("tokens do not fill the blocks")
    try:
        tokens = pack_tokens(event.token_ids)
    except (OverflowError, TypeError) as error:
        raise RefusedError("a token id is no 32-bit number") from error
    extras = None
    if event.extra_keys is not None and any(event.extra_keys):
        extras = _extras(event.extra_keys, num_blocks, event.lora_name)
    return chain_keys(parent, memoryview(tokens), event.block_size, extras)


def _extras(entries: list[Any], num_blocks: int, adapter: str | None) -> dict[int, bytes]:
    if len(entries) != num_blocks:
        raise RefusedError("extra keys do not go with the blocks")
    extras = {}
    for index, entry in enumerate(entries):
        parts = _without_adapter(entry, adapter)
        if parts:
            extras[index] = encode_extra(parts)
    return extras


def _without_adapter(entry: Any, adapter: str | None) -> list[object]:
    """A block's parts besides the adapter, which is in the root key; the engine puts it first."""
    if entry is None:
        return []
    if not isinstance(entry, list | tuple):
        raise RefusedError("extra keys of a block are no list")
    parts = list(entry)
    if adapter is not None and parts and parts[0] == adapter:
        del parts[0]
    return parts


def parent_key(owner: Owner, event: Stored) -> int | None:
    """Key of the block before the event's first; None if the owner never named it."""
    if event.parent_block_hash is None:
        return owner.root(adapter_of(event))
    return owner.find(event.parent_block_hash, event.block_size)
