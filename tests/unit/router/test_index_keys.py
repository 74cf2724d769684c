"""Keys and prompts: what is hashed, in literal numbers, so that they stay what they are."""

import pytest

from transload_router.core.index.keys import Identity, chain_keys, encode_extra, root_key
from transload_router.core.prompt import Prompt, pack_tokens

ROOT = 0x376DEF1AEF5BC15F
PAIRS = [0x4AEC6689988BD2F3, 0xDEB2B81DEFD769F5]
SALTED = 0x1EB06A5E69B02C78


def test_keys_stay_what_they_are() -> None:
    """Snapshots hold keys: another recipe needs another version of those."""
    root = root_key(Identity("m"))
    assert root == ROOT
    assert chain_keys(root, pack_tokens([1, 2, 3, 4, 5]), 2) == PAIRS
    assert chain_keys(root, pack_tokens([1, 2]), 2, {0: encode_extra(["s"])}) == [SALTED]


def test_a_key_stands_for_all_before_it() -> None:
    root = root_key(Identity("m"))
    one = chain_keys(root, pack_tokens([1, 2, 3, 4]), 2)
    other = chain_keys(root, pack_tokens([9, 2, 3, 4]), 2)
    assert one[1] != other[1]
    assert chain_keys(one[0], pack_tokens([3, 4]), 2) == one[1:]


def test_block_sizes_do_not_mix() -> None:
    root = root_key(Identity("m"))
    tokens = pack_tokens(list(range(16)))
    keys = [key for size in (1, 2, 4, 8, 16) for key in chain_keys(root, tokens, size)]
    assert len(set(keys)) == len(keys)


def test_roots_are_apart_by_position() -> None:
    roots = {
        root_key(Identity("m")),
        root_key(Identity("m", "x")),
        root_key(Identity("x", "m")),
        root_key(Identity("x")),
        root_key(Identity("m", "")),
        root_key(Identity("m"), 1),
    }
    assert len(roots) == 6


def test_prompts_compute_their_keys_once() -> None:
    prompt = Prompt(Identity("m"), pack_tokens([1, 2, 3, 4, 5]))
    assert prompt.num_tokens == 5
    assert prompt.keys(2) == PAIRS
    assert prompt.keys(2) is prompt.keys(2)
    assert len(prompt.keys(5)) == 1
    assert prompt.keys(6) == []


def test_a_salt_is_in_the_first_block() -> None:
    prompt = Prompt(Identity("m"), pack_tokens([1, 2]), "s")
    assert prompt.keys(2) == [SALTED]
    assert Prompt(Identity("m"), pack_tokens([1, 2]), "").keys(2) != [SALTED]


def test_tokens_are_packed_little_endian() -> None:
    assert pack_tokens([1, 0xFFFF_FFFF]) == b"\x01\x00\x00\x00\xff\xff\xff\xff"
    for bad in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            pack_tokens([bad])
    with pytest.raises(TypeError):
        pack_tokens(["1"])  # type: ignore[list-item]
