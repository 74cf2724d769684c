"""KV events as the router's rooms exchange them, whatever version of vLLM wrote them.

Names are those of `vllm/distributed/kv_events.py`. What an older engine does not say is at its
default here.
"""

from typing import Any

import msgspec

# An engine's own name for a block: an unsigned 64-bit integer, or raw bytes where
# VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0. Opaque.
BlockHash = int | bytes

GPU = "GPU"
CPU = "CPU"
STORAGE = "STORAGE"


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that a cache now holds, a chain in the order of their tokens.

    Attributes:
        block_hashes: Their names, first to last.
        parent_block_hash: Name of the block before the first, None at a prompt's start. Events of
            lower tiers may say None and no tokens; their blocks are known by name alone.
        token_ids: Of all these blocks, `block_size` each; empty where the event carries none.
        block_size: Tokens per block of this tier and group.
        medium: Tier in upper case; "GPU" where the event does not say.
        extra_keys: Per block what besides tokens went into its hash (LoRA name, media, salt, in
            vLLM's order), None for nothing; None where the engine does not say.
        group_idx: Hybrid cache group; 0 where the engine does not say.
        sliding_window: Tokens of the group's window; None for full attention.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    lora_name: str | None = None
    medium: str = GPU
    extra_keys: list[Any] | None = None
    group_idx: int = 0
    kv_cache_spec_kind: str | None = None
    sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class Removed(msgspec.Struct, frozen=True, gc=False):
    """Blocks that a tier no longer holds; one physical copy each.

    Attributes:
        num_remaining: Copies left per block, aligned with `block_hashes`, where the engine says.
    """

    block_hashes: list[BlockHash]
    medium: str = GPU
    group_idx: int = 0
    num_remaining: list[int] | None = None


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """Everything that this publisher held is gone (`AllBlocksCleared`), all tiers and groups."""


Event = Stored | Removed | Cleared


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One message of a publisher: the events of one engine step, in order.

    Attributes:
        rank: Data-parallel rank as the payload has it, None where it does not say. Ownership goes
            by subscription, not by this.
        num_skipped: Events in it that could not be read.
    """

    timestamp_s: float
    events: list[Event]
    rank: int | None = None
    num_skipped: int = 0
