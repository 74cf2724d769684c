"""A model's files, put together as transformers does."""

import json
from typing import Any

import pytest

from support.small_tokenizers import byte_level, made
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.build import BadTokenizer, TokenizerFiles, build
from transload_router.core.tokens.job import ChatJob, Reason, TextJob, Unknown

_USER = {"role": "user", "content": "u"}


def _files(**fields: Any) -> TokenizerFiles:
    return TokenizerFiles(tokenizer=byte_level().to_str(), **fields)


def _ids(files: TokenizerFiles, text: str) -> list[int]:
    prompt = made(files).prompt(TextJob(text), Identity("m"))
    assert isinstance(prompt, Prompt)
    return list(memoryview(prompt.tokens).cast("I"))


def _shown(files: TokenizerFiles, tools: Any = None, chat_template: str | None = None) -> Any:
    tokens = build(files, str, chat_template=chat_template)
    plan = tokens.plan(ChatJob([_USER], tools, {}), Identity("m"))
    return plan if isinstance(plan, Unknown) else plan.text


def test_tokens_that_only_the_configuration_names_are_added_in_order() -> None:
    size = byte_level().get_vocab_size()
    decoder = {
        "100": {"content": "<b>", "special": True},
        "20": {"content": "<a>", "special": False, "normalized": False},
        "0": {"content": "<|im_start|>", "special": True},
    }
    files = _files(
        config={
            "added_tokens_decoder": decoder,
            "eos_token": "<eos>",
            "bos_token": {"content": "<bos>", "__type": "AddedToken"},
            "image_token": "<image>",
            "additional_special_tokens": ["<more>"],
            "add_bos_token": True,
        }
    )

    text = "<|im_start|><a><b><eos><bos><image><more>"
    assert _ids(files, text) == [0, *range(size, size + 6)]


def test_older_files_say_more_where_the_configuration_lists_no_tokens() -> None:
    size = byte_level().get_vocab_size()
    files = _files(
        config={"eos_token": "<old>"},
        special_tokens_map={"eos_token": "<new>"},
        added_tokens={"<second>": 7, "<first>": 3, "<new>": 9},
        chat_template="{{ eos_token }}",
    )

    assert _ids(files, "<first><second><new>") == [size, size + 1, size + 2]
    assert _shown(files) == "<new>"
    listed = _files(
        config={"eos_token": "<old>", "added_tokens_decoder": {}},
        special_tokens_map={"eos_token": "<new>"},
        chat_template="{{ eos_token }}",
    )
    assert _shown(listed) == "<old>"


def test_named_special_tokens_are_the_templates() -> None:
    files = _files(
        config={"bos_token": {"content": "<bos>"}, "pad_token": None, "image_token": "<i>"},
        chat_template="{{ bos_token }}{{ pad_token }}{{ image_token }}",
    )

    assert _shown(files) == "<bos><i>"


@pytest.mark.parametrize(
    ("fields", "plain", "tool_use"),
    [
        ({"config": {"chat_template": "c"}}, "c", "c"),
        ({"config": {"chat_template": "c"}, "chat_template": "f"}, "f", "f"),
        (
            {
                "config": {
                    "chat_template": [
                        {"name": "default", "template": "d"},
                        {"name": "tool_use", "template": "t"},
                    ]
                }
            },
            "d",
            "t",
        ),
        ({"config": {"chat_template": {"default": "d", "rag": "r"}}}, "d", "d"),
        ({"chat_template": "f", "named_templates": {"tool_use": "t"}}, "f", "t"),
        ({"config": {"chat_template": "c"}, "processor_template": "p"}, "p", "c"),
        (
            {"named_templates": {"tool_use": "t"}},
            Unknown(Reason.NO_TEMPLATE),
            "t",
        ),
        ({}, Unknown(Reason.NO_TEMPLATE), Unknown(Reason.NO_TEMPLATE)),
        ({"chat_template": "f", "model_type": "gpt_oss"}, Unknown(Reason.RENDERER), None),
        (
            {"chat_template": "f", "architectures": ["DeepseekV32ForCausalLM"]},
            Unknown(Reason.RENDERER),
            None,
        ),
    ],
)
def test_where_templates_come_from(fields: Any, plain: Any, tool_use: Any) -> None:
    files = _files(**fields)

    assert _shown(files) == plain
    if tool_use is not None:
        assert _shown(files, tools=[{}]) == tool_use


def test_the_operators_template_is_a_name_or_a_text() -> None:
    files = _files(chat_template="f", named_templates={"rag": "r"})

    assert _shown(files, chat_template="rag") == "r"
    assert _shown(files, tools=[{}], chat_template="{{ 1 }}") == "1"


def test_the_clock_is_the_one_given() -> None:
    tokens = build(_files(chat_template="{{ strftime_now('%Y') }}"), lambda form: f"<{form}>")

    plan = tokens.plan(ChatJob([_USER], None, {}), Identity("m"))
    assert not isinstance(plan, Unknown)
    assert plan.text == "<%Y>"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (TokenizerFiles(tokenizer="{}"), "tokenizer.json: "),
        (_files(chat_template="{% for %}"), "the chat template: "),
        (_files(config={"eos_token": {"text": "x"}}), "a special token is {'text': 'x'}"),
    ],
)
def test_files_that_cannot_be_used(files: TokenizerFiles, message: str) -> None:
    with pytest.raises(BadTokenizer) as caught:
        made(files)
    assert str(caught.value).startswith(message)


def test_a_template_that_wants_systems_first_is_probed() -> None:
    guarded = (
        "{% for m in messages if m.role == 'system' and not loop.first %}{{ x.y }}{% endfor %}"
    )
    late = [{"role": "system", "content": "s"}, _USER, {"role": "system", "content": "t"}, _USER]
    shown = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for template, text in ((shown, "sutu"), (shown + guarded, Unknown(Reason.TEMPLATE_FAILED))):
        tokens = made(_files(config=json.loads("{}"), chat_template=template))
        plan = tokens.plan(ChatJob(late, None, {}), Identity("m"))
        assert (plan if isinstance(plan, Unknown) else plan.text) == text
    merged = ChatJob(late, None, {}, is_anthropic=True)
    # Guards like Qwen's raise, in the engine's probe, too.
    raising = shown + (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('x') }}{% endif %}{% endfor %}"
    )
    plan = made(_files(chat_template=raising)).plan(merged, Identity("m"))
    assert not isinstance(plan, Unknown)
    assert plan.text == "stuu"
