"""A model's tokenizer files -> `Tokens`, by the rules of transformers 5.19.

What `AutoTokenizer` does beyond `tokenizer.json`: tokens that only the configuration names are
added; chat templates come from files first. `add_bos_token` and `add_eos_token` count for nothing
beside a `tokenizer.json`. Classes that build a tokenizer of their own are not followed: the
check against an engine at start-up tells.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jinja2
import msgspec
from tokenizers import AddedToken, Tokenizer

from transload_router.core.tokens.chat import Chat, ChatOptions, Templates
from transload_router.core.tokens.encoder import Encoder
from transload_router.core.tokens.template import Template, wants_systems_first
from transload_router.core.tokens.tokens import PREFIX_CACHE_BYTES, SEGMENT_CACHE_BYTES, Tokens

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# Model types and architectures whose chats vLLM 0.32.0 renders by code, not by a template
# (`config/model.py`, "Set default tokenizer modes"; `renderers/online_renderer.py` for gpt_oss).
_CODED = frozenset(
    {
        "DeepseekV32ForCausalLM",
        "DeepseekV41ForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "InklingForCausalLM",
        "InklingForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "MoonshotKimiaForCausalLM",
        "gpt_oss",
    }
)


class BadTokenizer(ValueError):
    """The files are no tokenizer that can be used here; the message says why."""


class TokenizerFiles(msgspec.Struct, frozen=True):
    """What a model's folder says about its tokenizer.

    Attributes:
        tokenizer: Text of `tokenizer.json`.
        config: `tokenizer_config.json`.
        special_tokens_map: `special_tokens_map.json`, for what the configuration leaves out.
        added_tokens: `added_tokens.json`: ids by token.
        chat_template: Text of `chat_template.jinja`.
        named_templates: Texts of `additional_chat_templates/*.jinja`, by name.
        processor_template: The template of `chat_template.json`, which a multimodal model's
            processor uses for conversations without tools.
        model_type: Of the model's `config.json`, or "".
        architectures: Of the same.
    """

    tokenizer: str
    config: dict[str, Any] = {}
    special_tokens_map: dict[str, Any] = {}
    added_tokens: dict[str, int] = {}
    chat_template: str | None = None
    named_templates: dict[str, str] = {}
    processor_template: str | None = None
    model_type: str = ""
    architectures: list[str] = []


def build(
    files: TokenizerFiles,
    strftime_now: Callable[[str], str],
    *,
    chat_template: str | None = None,
    options: ChatOptions | None = None,
    guard: AbstractContextManager[Any] | None = None,
    prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
    segment_cache_bytes: int = SEGMENT_CACHE_BYTES,
) -> Tokens:
    """Everything that tokenises prompts of one model.

    Args:
        files: The model's.
        strftime_now: Formats the present, for templates that ask for the date.
        chat_template: The engine's `--chat-template`: a text, or the name of one of the model's.
        options: How the engine was started.
        guard: For `Tokens`, as are the next two.
        prefix_cache_bytes: For whole prompts, to go on from.
        segment_cache_bytes: For texts between special tokens.

    Raises:
        BadTokenizer: The files cannot be used.
    """
    tokenizer = _tokenizer(files)
    config = _configured(files)
    special_tokens = _special_tokens(config)
    _add_tokens(tokenizer, files, config, special_tokens)
    templates = None
    if _CODED.isdisjoint((files.model_type, *files.architectures)):
        templates = _templates(files, chat_template, strftime_now)
    names = {name: token.content for name, token in special_tokens.items()}
    return Tokens(
        Encoder(tokenizer),
        Chat(templates, names, options),
        guard,
        prefix_cache_bytes=prefix_cache_bytes,
        segment_cache_bytes=segment_cache_bytes,
    )


def _tokenizer(files: TokenizerFiles) -> Tokenizer:
    try:
        return Tokenizer.from_str(files.tokenizer)
    except Exception as error:  # tokenizers raises nothing narrower
        raise BadTokenizer(f"tokenizer.json: {error}") from error


def _configured(files: TokenizerFiles) -> dict[str, Any]:
    """The configuration, under what older files say where it does not list its tokens."""
    if "added_tokens_decoder" in files.config:
        return files.config
    return {**files.config, **files.special_tokens_map}


def _special_tokens(config: dict[str, Any]) -> dict[str, AddedToken]:
    """Tokens with a name, transformers' own ones and the model's."""
    found = {}
    for name, value in config.items():
        if value and (name in _NAMED or (name.endswith("_token") and isinstance(value, str))):
            found[name] = _added_token(value, is_special=True)
    return found


def _added_token(value: str | dict[str, Any], *, is_special: bool) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=is_special, normalized=not is_special)
    flags = {
        flag: bool(value[flag])
        for flag in ("single_word", "lstrip", "rstrip", "normalized")
        if flag in value
    }
    try:
        return AddedToken(value["content"], special=bool(value.get("special", is_special)), **flags)
    except (KeyError, TypeError) as error:
        raise BadTokenizer(f"a special token is {value!r}") from error


def _add_tokens(
    tokenizer: Tokenizer,
    files: TokenizerFiles,
    config: dict[str, Any],
    special_tokens: dict[str, AddedToken],
) -> None:
    """Tokens that `tokenizer.json` lacks, in transformers' order."""
    special = list(special_tokens.values())
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    special += [_added_token(token, is_special=True) for token in extra]
    decoder = config.get("added_tokens_decoder")
    if decoder is not None:
        numbered = sorted(decoder.items(), key=lambda item: int(item[0]))
        missing = [_added_token(token, is_special=False) for _, token in numbered]
    else:
        names = {token.content for token in special}
        numbered = sorted(files.added_tokens.items(), key=lambda item: item[1])
        missing = [_added_token(token, is_special=token in names) for token, _ in numbered]
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token in missing + special:
        if token.content and token.content not in known:
            known.add(token.content)
            tokenizer.add_tokens([token])


def _templates(
    files: TokenizerFiles, override: str | None, strftime_now: Callable[[str], str]
) -> Templates:
    named = _named_templates(files)
    plain: str | None
    tool_use: str | None
    if override is not None:
        plain = tool_use = named.get(override, override)
    else:
        default = named.get("default")
        plain = files.processor_template or default
        tool_use = named.get("tool_use", default)
    compiled: dict[str, Template] = {}
    for source in {plain, tool_use} - {None}:
        assert source is not None
        try:
            compiled[source] = Template(source, strftime_now)
        except jinja2.TemplateError as error:
            raise BadTokenizer(f"the chat template: {error}") from error
    return Templates(
        plain=None if plain is None else compiled[plain],
        tool_use=None if tool_use is None else compiled[tool_use],
        wants_systems_first=any(s is None or wants_systems_first(s) for s in (plain, tool_use)),
    )


def _named_templates(files: TokenizerFiles) -> dict[str, str]:
    """Templates by name; a single one is the default. Files win over the configuration."""
    named = dict(files.named_templates)
    if files.chat_template is not None:
        named["default"] = files.chat_template
    if named:
        return named
    given = files.config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        return {each["name"]: each["template"] for each in given}
    return dict(given) if isinstance(given, dict) else {}
