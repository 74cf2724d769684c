"""A model's tokenizer files, from a folder or the hub's cache; nothing is ever downloaded."""

import json
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from transload_router.core.tokens.build import BadTokenizer, TokenizerFiles, build
from transload_router.core.tokens.chat import ChatOptions
from transload_router.core.tokens.tokens import PREFIX_CACHE_BYTES, SEGMENT_CACHE_BYTES, Tokens
from transload_router.errors import ConfigError

# vLLM 0.32.0 takes Mistral's own tokenizer where both kinds of files are there
# (`tokenizers/registry.py:resolve_tokenizer_args`).
_MISTRAL_WEIGHTS = "consolidated*.safetensors"
_MISTRAL_TOKENIZERS = ("tekken.json", "tokenizer.model.v*")
# What broken files, and names that are none, make of the code that reads them.
_UNREADABLE = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
_PROCESSORS = ("processor_config.json", "preprocessor_config.json")


def load_tokens(
    model: str,
    *,
    revision: str = "main",
    chat_template: str | None = None,
    options: ChatOptions | None = None,
    prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
    segment_cache_bytes: int = SEGMENT_CACHE_BYTES,
    environ: Mapping[str, str] | None = None,
) -> Tokens:
    """Read a model's tokenizer and templates; takes about a second for a large vocabulary.

    Args:
        model: A folder, or a name in the hub's cache ("org/name").
        revision: Branch, tag or commit, for a name.
        chat_template: The engine's `--chat-template`: a file, a template's name or its text.
        options: How the engine was started.
        prefix_cache_bytes: Room for whole prompts, to go on from.
        segment_cache_bytes: Room for texts between special tokens.
        environ: Instead of the process's.

    Raises:
        ConfigError: There is no tokenizer, or none that can be used here.
    """
    # One text at a time is encoded, in threads of our own: a second pool would only cost.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        folder = find_folder(model, os.environ if environ is None else environ, revision)
        return build(
            read_files(folder),
            lambda form: datetime.now().strftime(form),  # the engine's own, local time
            chat_template=_read_template(chat_template),
            options=options,
            guard=threading.Lock(),
            prefix_cache_bytes=prefix_cache_bytes,
            segment_cache_bytes=segment_cache_bytes,
        )
    except BadTokenizer as error:
        raise ConfigError(f"tokenizer of {model!r} in {folder}: {error}") from error
    except _UNREADABLE as error:
        detail = f"{type(error).__name__}: {error}"
        raise ConfigError(f"tokenizer {model[:200]!r} cannot be read: {detail[:200]}") from error


def find_folder(model: str, environ: Mapping[str, str], revision: str = "main") -> Path:
    """Where a model's files lie.

    Args:
        model: A folder, or a name in the hub's cache.
        environ: For `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` and `HOME`.
        revision: Branch, tag or commit, for a name.

    Raises:
        ConfigError: Nowhere.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    cache = _hub_cache(environ)
    repo = cache / f"models--{model.replace('/', '--')}"
    ref = repo / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = repo / "snapshots" / commit
    if model.count("/") <= 1 and snapshot.is_dir():
        return snapshot
    raise ConfigError(f"tokenizer {model!r}: neither a folder nor in the hub's cache {cache}")


def _hub_cache(environ: Mapping[str, str]) -> Path:
    if cache := environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    default = Path(environ.get("HOME", "~")) / ".cache"
    return Path(environ.get("XDG_CACHE_HOME") or default).expanduser() / "huggingface" / "hub"


def read_files(folder: Path) -> TokenizerFiles:
    """What a model's folder says about its tokenizer.

    Raises:
        ConfigError: Something needed is missing, or cannot be read.
    """
    mistral = [path.name for form in _MISTRAL_TOKENIZERS for path in folder.glob(form)]
    if mistral and any(folder.glob(_MISTRAL_WEIGHTS)):
        raise ConfigError(f"{folder}: engines read {mistral[0]} themselves, which is not known")
    tokenizer = _read(folder / "tokenizer.json")
    if tokenizer is None:
        raise ConfigError(f"{folder}: there is no tokenizer.json")
    model = _read_object(folder / "config.json")
    has_processor = any((folder / name).is_file() for name in _PROCESSORS)
    processor = _read_object(folder / "chat_template.json") if has_processor else {}
    names = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    template = _read(folder / "chat_template.jinja")
    return TokenizerFiles(
        tokenizer=tokenizer,
        config=_read_object(folder / "tokenizer_config.json"),
        special_tokens_map=_read_object(folder / "special_tokens_map.json"),
        added_tokens=_read_object(folder / "added_tokens.json"),
        chat_template=template,
        named_templates={path.stem: _read(path) or "" for path in names},
        processor_template=processor.get("chat_template") if template is None else None,
        model_type=str(model.get("model_type", "")),
        architectures=[str(name) for name in model.get("architectures") or []],
    )


def _read_template(given: str | None) -> str | None:
    """A template given by its file; what is no file's name is the template, or its name."""
    if given is None or any(char in given for char in "{}\n"):
        return given
    return _read(Path(given).expanduser()) or given


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_object(path: Path) -> dict[str, Any]:
    text = _read(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected an object")
    return value
