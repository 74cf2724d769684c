"""The tokenizer that needs no model."""

import pytest

from transload_engine.server.tokens import AnswerText, ByteTokenizer, Message, text_of

BYTES = ByteTokenizer()


@pytest.mark.parametrize("text", ["", "cargo", "Höhe 高 🚢", "a\x00b"])
def test_text_comes_back(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


def test_a_token_is_a_byte_behind_three_special_ones() -> None:
    assert BYTES.encode("A\xff") == [68, 0xC3 + 3, 0xBF + 3]


def test_ids_that_are_no_bytes_are_words() -> None:
    assert BYTES.decode([68, 300, 1, 2, 0]) == "A w300"


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="258 ids are fewer than the 259"):
        ByteTokenizer(258)


def test_a_conversation_is_its_turns() -> None:
    turns: list[Message] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"text": "yo"}]},
    ]
    closed = BYTES.encode_chat(turns, None, add_generation_prompt=False)
    opened = BYTES.encode_chat(turns, None, add_generation_prompt=True)
    encode = BYTES.encode
    assert closed == [2, *encode("user\nhi"), 1, 2, *encode("assistant\nyo"), 1]
    assert opened == [*closed, 2, *encode("assistant\n")]
    assert BYTES.encode_chat(turns[:1], [{"x": 1}], add_generation_prompt=False) == [
        *(2, *encode('tools\n[{"x": 1}]'), 1),
        *(2, *encode("user\nhi"), 1),
    ]


def test_calls_are_part_of_a_turn() -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert BYTES.decode(BYTES.encode_chat([turn], None, add_generation_prompt=False)) == (
        'assistant\n[{"id": "1"}]'
    )


def test_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"At most 0 image\(s\)"):
        text_of([{"type": "image_url", "image_url": {"url": "x"}}])


def test_half_a_character_is_held_back() -> None:
    text = AnswerText(BYTES)
    assert [text.push([token]) for token in BYTES.encode("aé!")] == ["a", "", "é", "!"]
