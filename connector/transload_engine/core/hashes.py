"""What a full block is known by: a hash of its tokens and of all before them.

Knows no events and no cache: these carry and keep what is made here.
"""

import enum
import hashlib
from array import array
from collections.abc import Sequence
from typing import Final, Protocol

NO_SEED: Final = "vllm-none-hash"
"""What vLLM hashes for the parent of first blocks where PYTHONHASHSEED does not say (0.29 and
later): `v1/core/kv_cache_utils.py:resolve_none_hash_seed`."""


class HashAlgorithm(enum.StrEnum):
    """How blocks are hashed; `sha256_cbor` is vLLM's, `transload` is of our own and needs nothing.

    Engines that hash alike name equal blocks alike, so that events of one can be read with hashes
    of another.
    """

    TRANSLOAD = "transload"
    SHA256_CBOR = "sha256_cbor"


class BlockHash(Protocol):
    """A recipe.

    Attributes:
        root: Stands for the parent of a prompt's first block.
    """

    root: bytes

    def of(self, parent: bytes, token_ids: Sequence[int], salt: str | None) -> bytes:
        """32 bytes for a block behind `parent`; the salt is given with a prompt's first block."""
        ...


class OwnHash:
    """The recipe of simulated engines."""

    root = hashlib.sha256(b"transload simulated engine").digest()

    def of(self, parent: bytes, token_ids: Sequence[int], salt: str | None) -> bytes:
        """See `BlockHash`."""
        hashed = hashlib.sha256(parent)
        hashed.update(array("Q", token_ids).tobytes())
        if salt is not None:
            hashed.update(b"\0" + salt.encode())
        return hashed.digest()


class CborHash:
    """vLLM 0.32.0's `sha256_cbor`: of (parent, tokens, extra keys or null) in canonical CBOR.

    Args:
        seed: Value of PYTHONHASHSEED where the engines to agree with have one.

    Raises:
        ValueError: cbor2 is not installed.
    """

    def __init__(self, seed: str = NO_SEED) -> None:
        try:
            from cbor2 import dumps
        except ModuleNotFoundError as error:
            raise ValueError(f"sha256_cbor needs cbor2: {error}") from error
        self._dumps = dumps
        self.root = self._hashed(seed)

    def of(self, parent: bytes, token_ids: Sequence[int], salt: str | None) -> bytes:
        """See `BlockHash`; keys carry the name of their kind since vLLM 0.31."""
        keys = None if salt is None else (("cache_salt", salt),)
        return self._hashed((parent, tuple(token_ids), keys))

    def _hashed(self, value: object) -> bytes:
        return hashlib.sha256(self._dumps(value, canonical=True)).digest()


OWN_HASH: Final = OwnHash()


def block_hash(algorithm: HashAlgorithm, seed: str) -> BlockHash:
    """The recipe of this name.

    Raises:
        ValueError: What it needs is not installed.
    """
    return CborHash(seed) if algorithm is HashAlgorithm.SHA256_CBOR else OWN_HASH
