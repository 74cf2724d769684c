"""A prompt as token ids, with the names of its blocks."""

from array import array
from collections.abc import Sequence

from transload_router.core.index.keys import Identity, chain_keys, encode_extra, root_key


class Prompt:
    """Token ids of one prompt; block keys are computed once per (block size, group).

    Attributes:
        identity: Whose tokens they are.
        tokens: Token ids, 4 bytes little-endian each.
        cache_salt: The client's, or None; it is part of the first block, and so of all.
    """

    __slots__ = ("_keys", "cache_salt", "identity", "tokens")

    def __init__(
        self, identity: Identity, tokens: bytes, cache_salt: str | None = None
    ) -> None:
        self.identity = identity
        self.tokens = tokens
        self.cache_salt = cache_salt
        self._keys: dict[tuple[int, int], list[int]] = {}

    @property
    def num_tokens(self) -> int:
        """Length in tokens."""
        return len(self.tokens) // 4

    def keys(self, block_size: int, group_idx: int = 0) -> list[int]:
        """Keys of all whole blocks; not to be changed."""
        keys = self._keys.get((block_size, group_idx))
        if keys is None:
            extras = {0: encode_extra([self.cache_salt])} if self.cache_salt is not None else None
            root = root_key(self.identity, group_idx)
            keys = chain_keys(root, self.tokens, block_size, extras)
            self._keys[block_size, group_idx] = keys
        return keys


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
