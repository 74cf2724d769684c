"""Conversations rendered as the engine was told to."""

from typing import Any

import pytest

from support.small_tokenizers import noon
from transload_router.core.tokens.chat import Chat, ChatOptions, Templates
from transload_router.core.tokens.job import ChatJob, Reason, Unreadable
from transload_router.core.tokens.template import Template

_SHOW = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    "{{ enable_thinking }}{{ reasoning_effort }}{{ tone }}"
)
_USER = {"role": "user", "content": "u"}


def _chat(source: str | None = _SHOW, tool_use: str | None = None, **options: Any) -> Chat:
    plain = None if source is None else Template(source, noon)
    with_tools = plain if tool_use is None else Template(tool_use, noon)
    templates = Templates(plain=plain, tool_use=with_tools)
    return Chat(templates, {"bos_token": "<s>"}, ChatOptions(**options))


def _job(*messages: dict[str, Any], **fields: Any) -> ChatJob:
    arguments = fields.pop("arguments", {})
    return ChatJob(list(messages) or [_USER], fields.pop("tools", None), arguments, **fields)


def test_the_operators_arguments_stand_under_the_requests() -> None:
    chat = _chat(default_arguments={"tone": "dry", "enable_thinking": True})

    assert chat.text(_job()) == "[user:u]Truedry"
    assert chat.text(_job(arguments={"tone": "wry"})) == "[user:u]Truewry"


def test_tools_choose_their_template_and_may_be_declined() -> None:
    declined = _job(tools=[{}], is_tool_choice_none=True)

    assert _chat("plain", "tools").text(_job()) == "plain"
    assert _chat("plain", "tools").text(declined) == "tools"
    assert _chat("plain", "tools", excludes_declined_tools=True).text(declined) == "plain"
    assert _chat("plain", "tools", excludes_declined_tools=True).text(_job(tools=[{}])) == "tools"


def test_a_content_format_may_be_set_by_the_operator() -> None:
    assert _chat(content_format="openai").text(_job()) == "[user:[{'type': 'text', 'text': 'u'}]]"


def test_developers_speak_as_the_system_where_the_template_knows_none() -> None:
    job = _job(_USER, {"role": "developer", "content": "d"})

    assert _chat().text(job) == "[system:d][user:u]"
    assert _chat(f"{_SHOW}{{# 'developer' #}}").text(job) == "[user:u][developer:d]"


def test_what_has_no_template() -> None:
    with pytest.raises(Unreadable) as caught:
        Chat(None, {}).text(_job())
    assert caught.value.reason == Reason.RENDERER
    with pytest.raises(Unreadable) as caught:
        _chat(None).text(_job())
    assert caught.value.reason == Reason.NO_TEMPLATE


def test_translated_systems_go_to_the_front_where_the_template_wants_that() -> None:
    messages = [
        {"role": "system", "content": "s"},
        _USER,
        {"role": "system", "content": "t"},
        _USER,
    ]
    template = Template(_SHOW, noon)
    chat = Chat(Templates(plain=template, tool_use=template, wants_systems_first=True), {})

    assert chat.text(_job(*messages, is_anthropic=True)) == "[system:st][user:u][user:u]"
    assert chat.text(_job(*messages)) == "[system:s][user:u][system:t][user:u]"
    assert _chat().text(_job(*messages, is_anthropic=True)).startswith("[system:s][user:u][system")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        # Known efforts differ from "none": it is understood.
        (_SHOW, "[user:u]Falsenone"),
        # "none" is refused, or means what an effort means: the lowest effort is told instead.
        (
            _SHOW + "{% if reasoning_effort == 'none' %}{{ raise_exception('x') }}{% endif %}",
            "[user:u]Truelow",
        ),
        ("{{ 'high' if reasoning_effort not in ('low',) else 'low' }}", "low"),
    ],
)
def test_disabled_thinking_is_told_as_the_template_understands_it(template: str, told: str) -> None:
    job = _job(
        arguments={"reasoning_effort": "high", "enable_thinking": True},
        is_anthropic=True,
        is_thinking_disabled=True,
    )

    assert _chat(template).text(job) == told


def test_a_clients_own_thinking_argument_stays() -> None:
    job = _job(
        arguments={"enable_thinking": 7}, is_thinking_disabled=True, gives_enable_thinking=True
    )

    assert _chat().text(job) == "[user:u]7none"
