"""Where a model's files lie, and what is read of them."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.small_tokenizers import byte_level
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.job import ChatJob, TextJob, Unknown
from transload_router.errors import ConfigError
from transload_router.io.tokenizer import load_tokens
from transload_router.io.tokenizer.files import find_folder, read_files

_COMMIT = "0123456789abcdef"
_USER = {"role": "user", "content": "u"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(byte_level().to_str())
    return folder


def _cached(cache: Path) -> Path:
    """A model in the hub's cache, with its main branch at one commit."""
    repo = cache / "models--org--name"
    snapshot = repo / "snapshots" / _COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(_COMMIT)
    return snapshot


def test_a_folder_is_taken_as_it_is(folder: Path) -> None:
    assert find_folder(str(folder), {}) == folder


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HF_HUB_CACHE": "{}/a", "HF_HOME": "{}/b"}, "a"),
        ({"HF_HOME": "{}/b", "XDG_CACHE_HOME": "{}/c"}, "b/hub"),
        ({"XDG_CACHE_HOME": "{}/c", "HOME": "{}"}, "c/huggingface/hub"),
        ({"HOME": "{}"}, ".cache/huggingface/hub"),
    ],
)
def test_a_name_is_looked_for_in_the_hubs_cache(
    tmp_path: Path, environ: Mapping[str, str], cache: str
) -> None:
    snapshot = _cached(tmp_path / cache)
    real = {name: value.format(tmp_path) for name, value in environ.items()}

    assert find_folder("org/name", real) == snapshot
    assert find_folder("org/name", real, _COMMIT) == snapshot
    with pytest.raises(ConfigError, match="neither a folder nor in the hub's cache"):
        find_folder("org/name", real, "other")
    with pytest.raises(ConfigError, match="tokenizer 'org/other'"):
        find_folder("org/other", real)


def test_everything_is_read(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<e>"}')
    (folder / "special_tokens_map.json").write_text('{"pad_token": "<p>"}')
    (folder / "added_tokens.json").write_text('{"<x>": 7}')
    (folder / "chat_template.jinja").write_text("plain é", encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["A"]}')

    files = read_files(folder)

    assert files.config == {"eos_token": "<e>"}
    assert files.special_tokens_map == {"pad_token": "<p>"}
    assert files.added_tokens == {"<x>": 7}
    assert (files.chat_template, files.named_templates) == ("plain é", {"tool_use": "tools"})
    assert (files.model_type, files.architectures) == ("llama", ["A"])


def test_a_processors_template_counts_where_there_is_a_processor_and_no_file(folder: Path) -> None:
    (folder / "chat_template.json").write_text('{"chat_template": "p"}')
    assert read_files(folder).processor_template is None
    (folder / "preprocessor_config.json").write_text("{}")
    assert read_files(folder).processor_template == "p"
    (folder / "chat_template.jinja").write_text("f")
    assert read_files(folder).processor_template is None


def test_files_that_cannot_be_read(folder: Path) -> None:
    (folder / "config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"config\.json: "):
        read_files(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected an object"):
        read_files(folder)
    (folder / "config.json").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"config\.json: "):
        read_files(folder)
    (folder / "config.json").unlink()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"there is no tokenizer\.json"):
        read_files(folder)


def test_mistrals_own_tokenizer_is_refused_where_engines_would_take_it(folder: Path) -> None:
    (folder / "tekken.json").write_text("{}")
    assert read_files(folder).tokenizer
    (folder / "consolidated.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"engines read tekken\.json themselves"):
        read_files(folder)


def test_a_tokenizer_is_loaded_and_used(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "<|im_end|>x"}))

    def text(chat_template: str | None) -> str:
        tokens = load_tokens(str(folder), chat_template=chat_template, environ={})
        plan = tokens.plan(ChatJob([_USER], None, {}), Identity("m"))
        assert not isinstance(plan, Unknown)
        return plan.text

    (tmp_path / "other.jinja").write_text("of a file")
    assert text(None) == "<|im_end|>x"
    assert text("{{ 1 }}") == "1"
    assert text(str(tmp_path / "other.jinja")) == "of a file"
    assert text("no-such-name") == "no-such-name"
    prompt = load_tokens(str(folder), environ={}).prompt(TextJob("<|im_end|>"), Identity("m"))
    assert isinstance(prompt, Prompt)
    assert prompt.tokens == b"\x01\0\0\0"


def test_a_tokenizer_that_cannot_be_used_names_the_model(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")

    with pytest.raises(ConfigError, match=r"tokenizer of '.*/model' in .*: tokenizer\.json: "):
        load_tokens(str(folder), environ={})


@pytest.mark.parametrize("model", ["~nobody-of-this-name/x", "x" * 5000, "a\0b", "", "//", "*"])
def test_engines_may_name_anything_as_their_models_place(model: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_tokens(model)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '{"architectures": 5}'),
        ("config.json", "[" * 200_000),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "a"}}}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": [1]}'),
        ("tokenizer_config.json", '{"bos_token": 5}'),
        ("tokenizer_config.json", '{"extra_special_tokens": 5}'),
        ("tokenizer_config.json", '{"chat_template": [{"name": "x"}]}'),
        ("added_tokens.json", '{"a": "b", "c": 3}'),
        ("chat_template.jinja", "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}"),
    ],
)
def test_files_of_a_wrong_form_are_named(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=folder.name):
        load_tokens(str(folder))


def test_templates_are_told_the_local_time(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%Y') | int > 2000 }}")

    plan = load_tokens(str(folder), environ={}).plan(ChatJob([_USER], None, {}), Identity("m"))

    assert not isinstance(plan, Unknown)
    assert plan.text == "True"
