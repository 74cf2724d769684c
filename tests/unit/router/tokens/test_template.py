"""Templates render as transformers renders them; the expected texts are transformers 5.19's."""

from typing import Any

import jinja2
import pytest

from support.small_tokenizers import noon
from transload_router.core.tokens.job import Reason, Unreadable
from transload_router.core.tokens.template import Bounds, Template, wants_systems_first

_CHAT = (
    "{% for m in messages %}<{{m.role}}>{{ m.content }}</e>\n{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
_TRIMMED = "{% for m in messages %}<{{m.role}}>{{ m.content | trim }}</e>\n{% endfor %}"
_PARTS = (
    "{% for m in messages %}<{{m.role}}>{% for p in m.content %}{{ p.text }}{% endfor %}"
    "</e>{% endfor %}"
)
_USER = {"role": "user", "content": "q"}
_VALUE = {"b": "<é>'&", "a": [1.0, None, True]}


def _render(
    source: str,
    messages: list[dict[str, Any]] | None = None,
    tools: Any = None,
    bounds: Bounds | None = None,
    **arguments: Any,
) -> str:
    template = Template(source, noon, bounds)
    return template.render(messages or [_USER], tools, arguments, {"bos_token": "<s>"})


def _said(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("source", "arguments", "text"),
    [
        ("{{ x | tojson }}", {"x": _VALUE}, '{"b": "<é>\'&", "a": [1.0, null, true]}'),
        ("{{ x.a | tojson(indent=2) }}", {"x": _VALUE}, "[\n  1.0,\n  null,\n  true\n]"),
        ("{{ x.b | tojson(ensure_ascii=True) }}", {"x": _VALUE}, '"<\\u00e9>\'&"'),
        (
            "{{ x | tojson(sort_keys=true, separators=(',',':')) }}",
            {"x": _VALUE},
            '{"a":[1.0,null,true],"b":"<é>\'&"}',
        ),
        (
            "{% for i in range(9) %}{% if i == 3 %}{% continue %}{% endif %}"
            "{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            {},
            "0124",
        ),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", {}, "a\n  b\nc"),
        ("{{ strftime_now('%Y') }}", {}, "noon, as %Y"),
        ("{% generation %}x{{ messages[0].content }}{% endgeneration %}y", {}, "xqy"),
        (
            "{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ bos_token }}",
            {},
            "NoneNoneFalse<s>",
        ),
        ("{{ bos_token }}{{ documents }}", {"bos_token": "mine", "documents": []}, "mine[]"),
        ("{{ messages[0]['nope'] is defined }}", {}, "False"),
        ("{{ continue_final_message }}", {}, ""),
        ("{{ ''.__class__ }}", {}, ""),
    ],
)
def test_what_templates_can_do(source: str, arguments: dict[str, Any], text: str) -> None:
    assert _render(source, **arguments) == text


def test_tools_are_seen_as_they_are() -> None:
    assert _render("{{ tools }}", tools=[{"a": 1}]) == "[{'a': 1}]"


@pytest.mark.parametrize(
    ("source", "last", "text"),
    [
        (_CHAT, _said("so "), "<user>q</e>\n<assistant>so "),
        (_CHAT, _said("so\n"), "<user>q</e>\n<assistant>so\n"),
        (_TRIMMED, _said("so  "), "<user>q</e>\n<assistant>so"),
        (_TRIMMED, _said("  so"), "<user>q</e>\n<assistant>so"),
    ],
)
def test_a_final_message_that_goes_on_is_left_open(
    source: str, last: dict[str, Any], text: str
) -> None:
    assert _render(source, [_USER, last], continue_final_message=True) == text


def test_of_parts_the_last_text_goes_on_and_the_message_stays_as_it_was() -> None:
    last = _said([{"type": "text", "text": "a"}, {"type": "image"}])
    first = {"role": "user", "content": [{"type": "text", "text": "q"}]}

    text = _render(_PARTS, [first, last], continue_final_message=True)

    assert text == "<user>q</e><assistant>a"
    assert last == _said([{"type": "text", "text": "a"}, {"type": "image"}])


@pytest.mark.parametrize(
    ("source", "messages", "arguments", "reason"),
    [
        (_PARTS, [_said([])], {"continue_final_message": True}, Reason.INVALID),
        (
            "{% for m in messages[:-1] %}{{ m.content }}{% endfor %}",
            [_USER, _said("so")],
            {"continue_final_message": True},
            Reason.TEMPLATE_FAILED,
        ),
        (
            _CHAT,
            [_said("a")],
            {"continue_final_message": True, "add_generation_prompt": True},
            Reason.INVALID,
        ),
        ("none", [_said("a")], {"continue_final_message": True}, Reason.INVALID),
        ("{{ raise_exception('no') }}", [_USER], {}, Reason.TEMPLATE_FAILED),
        ("{{ messages.append(1) }}", [_USER], {}, Reason.TEMPLATE_FAILED),
        ("{{ nothing.x }}", [_USER], {}, Reason.TEMPLATE_FAILED),
        ("{{ 1 + 'a' }}", [_USER], {}, Reason.TEMPLATE_FAILED),
        ("{{ 1 / 0 }}", [_USER], {}, Reason.TEMPLATE_FAILED),
        ("{{ messages[0].content.x.y }}", [_USER], {}, Reason.TEMPLATE_FAILED),
    ],
)
def test_what_templates_refuse(
    source: str, messages: list[dict[str, Any]], arguments: dict[str, Any], reason: Reason
) -> None:
    with pytest.raises(Unreadable) as caught:
        _render(source, messages, **arguments)
    assert caught.value.reason == reason


def test_no_conversation_is_no_prompt() -> None:
    with pytest.raises(Unreadable) as caught:
        Template(_CHAT, noon).render([], None, {}, {})
    assert caught.value.reason == Reason.INVALID


@pytest.mark.parametrize(
    "bounds", [Bounds(num_messages=2), Bounds(num_characters=40), Bounds(num_pieces=10)]
)
def test_work_is_bounded(bounds: Bounds) -> None:
    assert _render(_CHAT, [_USER], bounds=bounds) == "<user>q</e>\n"
    with pytest.raises(Unreadable) as caught:
        _render(_CHAT, [_USER] * 20, bounds=bounds)
    assert caught.value.reason == Reason.TOO_MUCH


def test_arguments_that_a_template_sets_itself_are_not_given_to_it() -> None:
    source = "{% set mode = 'own' %}{{ mode }}{{ other }}"

    assert _render(source, mode="given", other="o") == "owno"


def test_arguments_hide_functions_but_not_jinjas_own() -> None:
    assert _render("{{ strftime_now }}", strftime_now="mine") == "mine"
    assert _render("{{ range(2) | list }}", range="mine") == "[0, 1]"


def test_whether_a_template_knows_developers() -> None:
    assert Template("{{ m.role == 'developer' }}", noon).knows_developers
    assert not Template("{{ developer }}", noon).knows_developers


def test_a_template_that_is_none() -> None:
    with pytest.raises(jinja2.TemplateError):
        Template("{% for %}", noon)


@pytest.mark.parametrize(
    ("source", "is_wanted"),
    [
        (_CHAT, False),
        (
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
            "{{ raise_exception('x') }}{% endif %}{% endfor %}",
            True,
        ),
        # The engine's probe has no such tag, and counts that as a refusal.
        ("{% generation %}x{% endgeneration %}", True),
        ("{{ 1 + 'a' }}", True),
    ],
)
def test_templates_that_want_systems_first(source: str, is_wanted: bool) -> None:
    assert wants_systems_first(source) is is_wanted
