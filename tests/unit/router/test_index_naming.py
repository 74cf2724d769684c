"""From announcements to keys: the same as a prompt of those tokens has."""

import pytest

from transload_router.core.index.holders import Slot
from transload_router.core.index.keys import Identity
from transload_router.core.index.naming import RefusedError, adapter_of, keys_of, parent_key
from transload_router.core.index.owner import Owner
from transload_router.core.kv_events.events import Stored
from transload_router.core.prompt import Prompt, pack_tokens

TOKENS = list(range(8))


def owner() -> Owner:
    return Owner(("e", 0), "m", 0, Slot(1))


def keys(event: Stored) -> list[int]:
    parent = parent_key(owner(), event)
    assert parent is not None
    return keys_of(event, parent)


@pytest.mark.parametrize(
    ("lora", "salt", "extra_keys"),
    [
        (None, None, None),
        (None, None, [None, None]),
        (None, "s", [["s"], None]),
        ("a", None, [["a"], ["a"]]),
        ("a", "a", [["a", "a"], ["a"]]),
        ("a", "s", [("a", "s"), ("a",)]),
    ],
)
def test_keys_are_those_of_the_prompt(
    lora: str | None, salt: str | None, extra_keys: list[object] | None
) -> None:
    event = Stored([1, 2], None, TOKENS, 4, lora_name=lora, extra_keys=extra_keys)
    assert keys(event) == Prompt(Identity("m", lora), pack_tokens(TOKENS), salt).keys(4)


def test_media_are_in_their_block_and_all_after() -> None:
    plain = keys(Stored([1, 2], None, TOKENS, 4))
    second = keys(Stored([1, 2], None, TOKENS, 4, extra_keys=[None, [["id", 5]]]))
    assert (second[0] == plain[0], second[1] == plain[1]) == (True, False)


def test_a_parent_that_was_named_goes_before() -> None:
    one = owner()
    whole = keys(Stored([1, 2], None, TOKENS, 4))
    child = Stored([2], 1, TOKENS[4:], 4)
    assert parent_key(one, child) is None
    assert keys_of(child, whole[0]) == whole[1:]


def test_adapters() -> None:
    assert adapter_of(Stored([1], None, [1], 1)) is None
    assert adapter_of(Stored([1], None, [1], 1, lora_id=3, lora_name="a")) == "a"
    # Without a name it is no adapter that a prompt can ask for.
    assert adapter_of(Stored([1], None, [1], 1, lora_id=3)) == "\x003"


def test_refusals_say_why() -> None:
    with pytest.raises(RefusedError, match="tokens do not fill the blocks"):
        keys(Stored([1, 2], None, TOKENS[:7], 4))
    with pytest.raises(RefusedError, match="no 32-bit number"):
        keys(Stored([1], None, [-1], 1))
    with pytest.raises(RefusedError, match="do not go with the blocks"):
        keys(Stored([1], None, [1], 1, extra_keys=[["s"], ["s"]]))
    with pytest.raises(RefusedError, match="no list"):
        keys(Stored([1], None, [1], 1, extra_keys=["s"]))
