"""K15: blocks are the same only if everything that the engine hashes is the same."""

import itertools

import pytest

from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.events import Removed, Stored
from transload_router.core.prompt import Prompt, pack_tokens

ENGINE = ("p0", 0)
TOKENS = list(range(100, 112))


def index_with(*events: Stored | Removed, model: str = "m") -> Index:
    index = Index()
    index.add_owner(ENGINE, model, 0)
    for event in events:
        index.apply(ENGINE, 0, event)
    return index


def prompt(model: str = "m", lora: str | None = None, salt: str | None = None) -> Prompt:
    return Prompt(Identity(model, lora), pack_tokens([*TOKENS, 1]), salt)


def tokens_of(index: Index, asked: Prompt) -> int:
    hit = index.match(asked).get(ENGINE)
    return 0 if hit is None else hit.num_tokens


def three_blocks(
    extra_keys: list[object] | None = None, lora: str | None = None, lora_id: int | None = None
) -> Stored:
    return Stored(
        [11, 12, 13], None, TOKENS, 4, lora_id=lora_id, lora_name=lora, extra_keys=extra_keys
    )


# Every part of the identity given the same text "x", as vLLM 0.32 announces it, with the prompt
# that asks for just that; None where no prompt can.
PARTS: dict[str, tuple[Stored, Prompt | None]] = {
    "plain": (three_blocks(), prompt()),
    "plain, extra keys told": (three_blocks([None, None, None]), prompt()),
    "adapter": (three_blocks([["x"]] * 3, "x", 1), prompt(lora="x")),
    "salt": (three_blocks([["x"], None, None]), prompt(salt="x")),
    "adapter and salt": (
        three_blocks([["x", "x"], ["x"], ["x"]], "x", 1),
        prompt(lora="x", salt="x"),
    ),
    "image": (three_blocks([[["x", 0]], None, None]), None),
    "image and salt": (three_blocks([[["x", 0], "x"], None, None]), None),
    "image at another place": (three_blocks([[["x", 1]], None, None]), None),
    "embeddings": (three_blocks([[b"x"], None, None]), None),
    "adapter without a name": (three_blocks(None, None, 1), None),
}
SAME = {"plain", "plain, extra keys told"}


@pytest.mark.parametrize(("stored", "asked"), [*itertools.product(PARTS, PARTS)])
def test_parts_are_disjoint(stored: str, asked: str) -> None:
    index = index_with(PARTS[stored][0])
    ask = PARTS[asked][1]
    if ask is not None:
        is_same = stored == asked or {stored, asked} <= SAME
        assert tokens_of(index, ask) == (12 if is_same else 0)


def test_models_are_disjoint() -> None:
    index = index_with(three_blocks(), model="m")
    assert tokens_of(index, prompt("m")) == 12
    assert tokens_of(index, prompt("n")) == 0


def test_no_match_past_the_placeholder_of_an_image() -> None:
    """B166: the text before an image is shared, the image and what follows are not."""
    index = index_with(three_blocks([None, [["sha-of-image-a", 2]], None]))
    assert tokens_of(index, prompt()) == 4


@pytest.mark.parametrize("entries", [[None, None, None], [[], [], []], [None, [], None], None])
def test_empty_extra_keys_are_none(entries: list[object] | None) -> None:
    """B162."""
    assert tokens_of(index_with(three_blocks(entries)), prompt()) == 12


def test_the_name_of_the_adapter_is_no_image() -> None:
    """B140: extra keys repeat the adapter's name, as list and as tuple."""
    for entry in (["adapterA"], ("adapterA",)):
        index = index_with(three_blocks([entry, None, entry], "adapterA", 7))
        assert tokens_of(index, prompt(lora="adapterA")) == 12


def test_adapters_do_not_share() -> None:
    """B165: the same tokens under two adapters."""
    index = index_with(three_blocks([["a"]] * 3, "a", 1))
    assert tokens_of(index, prompt(lora="b")) == 0
    assert tokens_of(index, prompt()) == 0


def test_another_adapter_of_the_same_name_shares_nothing() -> None:
    """B171: unloaded and loaded again under its name, with another id."""
    index = index_with(
        three_blocks(),
        Stored([21, 22], None, TOKENS[:8], 4, 1, "a", extra_keys=[["a"], ["a"]]),
    )
    assert tokens_of(index, prompt(lora="a")) == 8
    index.apply(ENGINE, 0, Stored([31], None, TOKENS[:4], 4, 2, "a", extra_keys=[["a"]]))
    assert tokens_of(index, prompt(lora="a")) == 4
    assert tokens_of(index, prompt()) == 12
    # The old one's removals come late, and hit nobody.
    index.apply(ENGINE, 0, Removed([21, 22]))
    assert tokens_of(index, prompt(lora="a")) == 4


def test_residency_is_by_rank() -> None:
    """B167: ranks of one engine are owners of their own."""
    index = Index()
    for rank in range(4):
        index.add_owner(("p0", rank), "m", 0)
    index.apply(("p0", 2), 0, three_blocks())
    assert set(index.match(prompt())) == {("p0", 2)}
    index.apply(("p0", 1), 0, Removed([11, 12, 13]))
    assert set(index.match(prompt())) == {("p0", 2)}


def test_engines_hashes_are_opaque() -> None:
    """B161: two engines with hashes of their own, and the same hash for different blocks."""
    index = index_with(Stored([1, 2, 3], None, TOKENS, 4))
    index.add_owner(("p1", 0), "m", 0)
    index.apply(("p1", 0), 0, Stored([b"\x01" * 32, b"\x02" * 32], None, TOKENS[:8], 4))
    index.apply(("p1", 0), 0, Stored([1, 2, 3], None, [9] * 12, 4))
    match = index.match(prompt())
    assert {key: hit.num_tokens for key, hit in match.items()} == {("p0", 0): 12, ("p1", 0): 8}
