"""A prompt as token ids, with the names of its blocks."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from transload_router.core.index.keys import Identity, chain_keys, encode_extra, root_key

KeysByBlock = dict[tuple[int, int], list[int]]
"""Block keys by (block size, group)."""


class KnownPrefix(NamedTuple):
    """Keys that another prompt with the same first tokens has computed.

    Attributes:
        keys: That prompt's, of the same identity and salt; filled as it is asked for them.
        num_tokens: How many first tokens the two share.
    """

    keys: KeysByBlock
    num_tokens: int


class Prompt:
    """Token ids of one prompt; block keys are computed once per (block size, group).

    Attributes:
        identity: Whose tokens they are.
        tokens: Token ids, 4 bytes little-endian each.
        cache_salt: The client's, or None; it is part of the first block, and so of all.
        keys_by_block: What `keys` has computed so far; for `KnownPrefix` of a later prompt.
    """

    __slots__ = ("_prefix", "cache_salt", "identity", "keys_by_block", "tokens")

    def __init__(
        self,
        identity: Identity,
        tokens: bytes,
        cache_salt: str | None = None,
        prefix: KnownPrefix | None = None,
    ) -> None:
        self.identity = identity
        self.tokens = tokens
        self.cache_salt = cache_salt
        self.keys_by_block: KeysByBlock = {}
        self._prefix = prefix

    @property
    def num_tokens(self) -> int:
        """Length in tokens."""
        return len(self.tokens) // 4

    def keys(self, block_size: int, group_idx: int = 0) -> list[int]:
        """Keys of all whole blocks; not to be changed."""
        keys = self.keys_by_block.get((block_size, group_idx))
        if keys is None:
            keys = self._known(block_size, group_idx)
            keys += self._chained(keys, block_size, group_idx)
            self.keys_by_block[block_size, group_idx] = keys
        return keys

    def _known(self, block_size: int, group_idx: int) -> list[int]:
        if self._prefix is None:
            return []
        num_blocks = self._prefix.num_tokens // block_size
        return self._prefix.keys.get((block_size, group_idx), [])[:num_blocks]

    def _chained(self, known: list[int], block_size: int, group_idx: int) -> list[int]:
        if known:
            rest = memoryview(self.tokens)[4 * block_size * len(known) :]
            return chain_keys(known[-1], rest, block_size)
        extras = {0: encode_extra([self.cache_salt])} if self.cache_salt is not None else None
        return chain_keys(root_key(self.identity, group_idx), self.tokens, block_size, extras)


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids in the form that `Prompt` holds.

    Raises:
        OverflowError: An id is negative or above 32 bits.
        TypeError: Something is not an integer.
    """
    packed = array("I", token_ids)
    if packed.itemsize != 4 or _IS_BIG_ENDIAN:
        return b"".join(number.to_bytes(4, "little") for number in token_ids)
    return packed.tobytes()


_IS_BIG_ENDIAN = array("I", [1]).tobytes()[:1] == b"\x00"
