"""The tokenizer that needs no model, and that of a model's folder."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from transload_engine.server.tokens import (
    AnswerText,
    ByteTokenizer,
    FolderTokenizer,
    Message,
    text_of,
)

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's tokenizer with words for tokens, and a template in the way of real ones."""
    words = {"[UNK]": 0, "<end>": 1, "<turn>": 2, "user": 3, "hi": 4, "there": 5, "assistant": 6}
    fast = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    fast.pre_tokenizer = Whitespace()
    fast.add_special_tokens(["[UNK]", "<end>", "<turn>"])
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    (tmp_path / "chat_template.jinja").write_text(
        "{%- for message in messages %}\n<turn> {{ message.role }} {{ message.content }} "
        "{{ eos_token }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %} <turn> assistant{% endif %}"
        "{%- if tools %}{{ raise_exception('no tools') }}{% endif %}"
    )
    return tmp_path


def test_a_models_folder_is_read(folder: Path) -> None:
    for path in (folder, folder / "tokenizer.json"):
        model = FolderTokenizer(path)
        assert (model.vocab_size, model.eos) == (7, 1)
        assert model.answer_ids == [3, 4, 5, 6]
        assert model.encode("hi there") == [4, 5]
        assert model.decode([4, 1, 5]) == "hi there"


def test_a_models_template_is_used(folder: Path) -> None:
    turns: list[Message] = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    model = FolderTokenizer(folder)
    assert model.encode_chat(turns, None, add_generation_prompt=True) == [2, 3, 4, 1, 2, 6]
    assert model.encode_chat(turns, None, add_generation_prompt=False) == [2, 3, 4, 1]
    with pytest.raises(ValueError, match="no tools"):
        model.encode_chat(turns, [{}], add_generation_prompt=False)


def test_a_template_sees_what_the_body_gives_it(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(
        "{%- for turn in messages %}{{ turn.content }}{% break %}{% endfor %}"
        "{%- if is_polite %} there{% endif %}{{ eos_token }}"
    )
    model, turns = FolderTokenizer(folder), [{"content": "hi"}, {"content": "user"}]
    values = {"is_polite": True, "messages": [], "eos_token": "<turn>"}
    plain = model.encode_chat(turns, None, add_generation_prompt=True)
    polite = model.encode_chat(turns, None, add_generation_prompt=True, values=values)
    assert (plain, polite) == ([4, 1], [4, 5, 2])


def test_arguments_of_calls_reach_a_template_as_what_they_are(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(
        "{{ messages[0].tool_calls[0].function.arguments.to }}"
    )
    model = FolderTokenizer(folder)
    call: dict[str, Any] = {"function": {"name": "greet", "arguments": '{"to": "user"}'}}
    turn: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert model.encode_chat([turn], None, add_generation_prompt=False) == [3]
    call["function"] = {"arguments": {"to": "there"}}
    assert model.encode_chat([turn], None, add_generation_prompt=False) == [5]
    call["function"] = {"arguments": "{"}
    with pytest.raises(ValueError, match="Expecting property name"):
        model.encode_chat([turn], None, add_generation_prompt=False)


def test_a_template_can_tell_the_time(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 'hi' if strftime_now('%Y') | int > 2000 }}")
    assert FolderTokenizer(folder).encode_chat([], None, add_generation_prompt=False) == [4]


def test_tokens_are_named_with_their_spaces_and_specials(tmp_path: Path) -> None:
    words = {"[UNK]": 0, "<end>": 1, "\u2581hi": 2, "there": 3}
    fast = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    fast.decoder = Metaspace()
    fast.add_special_tokens(["<end>"])
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    model = FolderTokenizer(tmp_path)
    assert [model.name(token) for token in (1, 2, 3)] == ["<end>", " hi", "there"]
    assert BYTES.name(68) == "A"


def test_a_folder_without_a_template_has_no_conversations(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        FolderTokenizer(folder).encode_chat([], None, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tokenizer.json", "{", "tokenizer.json: EOF while parsing"),
        ("tokenizer_config.json", "{", "Expecting property name"),
        ("chat_template.jinja", "{% if", "chat template: unexpected 'end of template'"),
    ],
)
def test_files_that_cannot_be_read_are_refused(
    folder: Path, name: str, text: str, said: str
) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        FolderTokenizer(folder)


@pytest.mark.parametrize("package", ["tokenizers", "jinja2.sandbox"])
def test_packages_that_are_missing_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"needs .*{package.partition('.')[0]}"):
        FolderTokenizer(folder)


def test_a_folder_without_an_end_is_refused(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="names no end-of-sequence token"):
        FolderTokenizer(folder)
