"""The demonstration's model: made here, the same each time, and one that engine and router read."""

import hashlib
from pathlib import Path

import pytest

from support.tiny_models import generate
from transload_engine.demo import checkpoint
from transload_engine.demo.checkpoint import ensure, key
from transload_engine.server.model_command import LoadedModel, load, model_parser
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.job import ChatJob
from transload_router.io.tokenizer.files import load_tokens

MESSAGES = [{"role": "user", "content": "Was geht über die Gauge?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    arguments = ["--model", str(folder), "--num-gpu-blocks-override", "300"]
    return load(model_parser().parse_args(arguments))


def test_it_has_the_same_weights_on_every_machine(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest().startswith("98c84db00697a055476ac34a")


def test_an_answer_is_letters_and_spaces_that_come_back_as_the_same_tokens(
    loaded: LoadedModel,
) -> None:
    prompt = loaded.tokenizer.encode_chat(MESSAGES, None, add_generation_prompt=True)
    answer = generate(loaded.runner, prompt, 24, range(1, 10))
    text = loaded.tokenizer.decode(answer)
    assert len(set(answer)) > 4
    assert text.replace(" ", "a").isalpha()
    assert text == text.lower()
    assert loaded.tokenizer.encode(text) == answer


def test_other_prompts_get_other_answers(loaded: LoadedModel) -> None:
    first, second = (loaded.tokenizer.encode(text) for text in ("rails apart", "rails afar"))
    assert generate(loaded.runner, first, 8, [1, 2]) != generate(loaded.runner, second, 8, [3, 4])


def test_a_byte_is_a_token_to_engine_and_router_alike(folder: Path, loaded: LoadedModel) -> None:
    ids = loaded.tokenizer.encode_chat(MESSAGES, None, add_generation_prompt=True)
    words = b"".join(each["content"].encode() for each in MESSAGES)
    assert len(ids) == len(b"user\nassistant\n") + len(words) + len(["turn", "end", "turn"])
    job = ChatJob(MESSAGES, None, {"add_generation_prompt": True})
    prompt = load_tokens(str(folder), environ={}).prompt(job, Identity("m"))
    assert isinstance(prompt, Prompt)
    assert list(memoryview(prompt.tokens).cast("I")) == ids


def test_it_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(checkpoint, "write", written.append)
    assert ensure(tmp_path) == ensure(tmp_path) == tmp_path / f"demo-model-{key()}"
    assert len(written) == 1
    assert [each.name for each in tmp_path.iterdir()] == [f"demo-model-{key()}"]


def test_whoever_is_second_takes_what_the_first_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path) -> None:
        other = tmp_path / f"demo-model-{key()}"
        other.mkdir()
        (other / "config.json").write_text("{}")

    monkeypatch.setattr(checkpoint, "write", write)
    assert [each.name for each in ensure(tmp_path).iterdir()] == ["config.json"]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "write", write)
    with pytest.raises(OSError, match="no space left"):
        ensure(tmp_path)
    assert list(tmp_path.iterdir()) == []
