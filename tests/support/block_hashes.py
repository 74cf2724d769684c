"""vLLM's block hashes, recomputed from tokens, to check what captured events say.

`v1/core/kv_cache_utils.py`: a block's hash is H((parent's hash, tokens, extra keys or None)), the
first parent being H(seed). Extra keys are tagged with their source from 0.31.
"""

import hashlib
import pickle
from collections.abc import Callable, Sequence

import cbor2

DEFAULT_SEED = "vllm-none-hash"
HashFunction = Callable[[object], bytes]
Keys = tuple[object, ...]


def sha256(value: object) -> bytes:
    """The engine's default, Python's own serialisation."""
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def sha256_cbor(value: object) -> bytes:
    """The one that other languages can compute."""
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


def chain(
    digest: HashFunction,
    parent: bytes,
    tokens: Sequence[int],
    size: int,
    keys: Sequence[Keys | None],
) -> list[bytes]:
    """Full hashes of the blocks of `tokens`."""
    found = []
    for index, extra in enumerate(keys):
        block = tuple(tokens[index * size : (index + 1) * size])
        parent = digest((parent, block, extra))
        found.append(parent)
    return found


def as_int(full: bytes) -> int:
    """As events carry it by default."""
    return int.from_bytes(full, "big") & (2**64 - 1)
