"""Prompts and the keys of their blocks."""

import pytest

from transload_router.core.index.keys import Identity, chain_keys, encode_extra, root_key
from transload_router.core.prompt import KnownPrefix, Prompt, pack_tokens

_ME = Identity("m")
_TOKENS = pack_tokens(range(100))


def test_ids_are_packed_little_endian() -> None:
    assert pack_tokens([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"
    with pytest.raises(OverflowError):
        pack_tokens([-1])
    with pytest.raises(TypeError):
        pack_tokens(["1"])  # type: ignore[list-item]


def test_keys_are_a_chain_from_the_identitys_root() -> None:
    prompt = Prompt(_ME, _TOKENS)

    assert prompt.num_tokens == 100
    assert prompt.keys(16) == chain_keys(root_key(_ME), _TOKENS, 16)
    assert prompt.keys(16, 1) == chain_keys(root_key(_ME, 1), _TOKENS, 16)
    assert len(prompt.keys(16)) == 6
    assert prompt.keys(16) is prompt.keys(16)


def test_a_salt_is_part_of_the_first_block() -> None:
    extras = {0: encode_extra(["s"])}

    assert Prompt(_ME, _TOKENS, "s").keys(16) == chain_keys(root_key(_ME), _TOKENS, 16, extras)


@pytest.mark.parametrize("salt", [None, "s"])
@pytest.mark.parametrize("num_shared", [0, 15, 16, 47, 48, 100])
def test_keys_go_on_from_a_prompt_with_the_same_beginning(
    num_shared: int, salt: str | None
) -> None:
    other = Prompt(_ME, _TOKENS[: 4 * num_shared] + pack_tokens(range(500, 560)), salt)
    known = other.keys(16)
    prompt = Prompt(_ME, _TOKENS, salt, KnownPrefix(other.keys_by_block, num_shared))

    alone = Prompt(_ME, _TOKENS, salt)
    assert prompt.keys(16) == alone.keys(16)
    assert prompt.keys(32) == alone.keys(32)
    assert other.keys(16) is known
    assert len(known) == (num_shared + 60) // 16


def test_known_keys_are_taken_and_not_computed() -> None:
    prompt = Prompt(_ME, _TOKENS, None, KnownPrefix({(16, 0): [1, 2, 3]}, 40))

    assert prompt.keys(16)[:2] == [1, 2]
    assert prompt.keys(16)[2:] == chain_keys(2, _TOKENS[4 * 32 :], 16)
