"""The router's own names for blocks: a chain of hashes over token ids.

A key stands for all tokens up to the end of its block and for whatever else decides whether two
caches mean the same by them. Engines' own hashes are names that the index maps to keys, so no
engine's hash algorithm or seed matters here.

Each part of the identity has a namespace of its own: model, adapter and cache group are in the
root, by position; what belongs to single blocks (cache salt, media) is hashed beside their tokens,
length first. A collision of 64 bits costs a detour, never a wrong token: the engine decides by
its own hashes what it reuses.
"""

from collections.abc import Mapping

import msgspec
import xxhash

_ENCODER = msgspec.msgpack.Encoder()


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Whose tokens they are: equal token ids of different identities are different blocks.

    Attributes:
        model: The base model, by one name for all engines that serve it.
        lora: The adapter's name, or None.
    """

    model: str
    lora: str | None = None


def root_key(identity: Identity, group_idx: int = 0) -> int:
    """The key before a prompt's first block."""
    parts = _ENCODER.encode(("kv", identity.model, identity.lora, group_idx))
    return xxhash.xxh3_64_intdigest(parts)


def encode_extra(parts: list[object]) -> bytes:
    """What besides tokens makes a block what it is, in the engine's order; for `chain_keys`."""
    return _ENCODER.encode(parts)


def chain_keys(
    parent: int,
    tokens: bytes | memoryview,
    block_size: int,
    extras: Mapping[int, bytes] | None = None,
) -> list[int]:
    """Keys of the whole blocks of `tokens`.

    Args:
        parent: Key of the block before the first, or the root key.
        tokens: Token ids, 4 bytes little-endian each; a rest shorter than a block has no key.
        block_size: Tokens per block.
        extras: By number of the block in `tokens`: what `encode_extra` made, where there is any.
    """
    width = 4 * block_size
    digest = xxhash.xxh3_64_intdigest
    keys = []
    key = parent
    for index, start in enumerate(range(0, len(tokens) - width + 1, width)):
        key = digest(tokens[start : start + width], key)
        if extras is not None and index in extras:
            key = digest(extras[index], key)
        keys.append(key)
    return keys
