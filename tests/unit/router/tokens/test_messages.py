"""Messages as a template sees them: shapes that vLLM 0.32.0's own code was seen to give."""

from typing import Any

import pytest

from transload_router.core.tokens.job import Reason, Unreadable
from transload_router.core.tokens.messages import OPENAI, STRING, as_system, converse

_FUNCTION = {"name": "f", "arguments": '{"b": 1, "a": 2.50}', "x": 1}
_CALL = {"type": "function", "id": "1", "function": _FUNCTION, "extra": 2}


def _one(message: Any, content_format: str = STRING, **kwargs: Any) -> dict[str, Any]:
    (seen,) = converse([message], content_format, **kwargs)
    return seen


def _text(text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


@pytest.mark.parametrize(
    ("message", "as_string", "as_parts"),
    [
        ({"role": "user", "content": "x", "foo": 1}, "x", [_text("x")]),
        ({"role": "user", "content": ""}, "", [_text("")]),
        ({"role": "user", "content": []}, "", []),
        ({"role": "user"}, "", []),
        ({"role": "assistant", "content": None}, "", []),
        ({"role": "user", "content": [_text(""), _text("a"), "b"]}, "a\nb", None),
        ({"role": "user", "content": [_text(None), _text("a")]}, "a", [_text("a")]),
        (
            {
                "role": "user",
                "content": [
                    _text("a", zzz=1, cache_control={"type": "e"}, closed=True),
                    {"type": "input_text", "text": "b"},
                    {"type": "refusal", "refusal": "r"},
                    {"type": "thinking", "thinking": "t"},
                ],
            },
            "a\nb\nr\nt",
            [
                _text("a", zzz=1, cache_control={"type": "e"}),
                _text("b"),
                _text("r"),
                _text("t"),
            ],
        ),
        (
            {"role": "user", "content": [{"type": "tool_reference", "name": "n", "q": 1}]},
            "n",
            [{"type": "tool_reference", "name": "n"}],
        ),
        (
            {"role": "system", "content": "x-anthropic-billing-header: a\nrest\nof it"},
            "rest\nof it",
            [_text("rest\nof it")],
        ),
        ({"role": "system", "content": [_text("x-anthropic-billing-header: a")]}, "", []),
    ],
)
def test_content(message: Any, as_string: str, as_parts: list[Any] | None) -> None:
    assert _one(message) == {"role": message["role"], "content": as_string}
    if as_parts is not None:
        assert _one(message, OPENAI) == {"role": message["role"], "content": as_parts}


def test_a_tools_text_is_joined_even_for_templates_that_want_parts() -> None:
    message = {"role": "tool", "tool_call_id": None, "content": [_text("a"), _text("b")]}

    assert _one(message, OPENAI) == {"role": "tool", "content": "a\nb", "tool_call_id": None}
    reference = {"type": "tool_reference", "name": "n"}
    assert _one({"role": "tool", "content": [reference, _text("t")]}, OPENAI) == {
        "role": "tool",
        "content": [reference, _text("t")],
    }


def test_calls_take_the_order_of_the_engines_types_and_arguments_become_objects() -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": [_CALL]}

    (call,) = _one(message)["tool_calls"]
    assert repr(call) == (
        "{'id': '1', 'function': {'arguments': {'b': 1, 'a': 2.5}, 'name': 'f', 'x': 1}, "
        "'type': 'function', 'extra': 2}"
    )
    (call,) = _one(message, is_typed=False)["tool_calls"]
    assert repr(call) == (
        "{'type': 'function', 'id': '1', 'function': {'name': 'f', "
        "'arguments': {'b': 1, 'a': 2.5}, 'x': 1}, 'extra': 2}"
    )
    assert message["tool_calls"] == [_CALL]


@pytest.mark.parametrize("arguments", ["", "not json", "[1]", "5", "null"])
def test_arguments_that_are_no_object_become_an_empty_one(arguments: str) -> None:
    call = {**_CALL, "function": {"name": "f", "arguments": arguments}}

    seen = _one({"role": "assistant", "content": "x", "tool_calls": [call]})

    assert seen["tool_calls"][0]["function"]["arguments"] == {}


def test_only_an_assistants_calls_and_reasoning_are_seen() -> None:
    assert _one({"role": "assistant", "content": "x", "tool_calls": []}) == {
        "role": "assistant",
        "content": "x",
    }
    assert _one({"role": "zork", "content": "x", "tool_calls": [_CALL], "reasoning": "r"}) == {
        "role": "zork",
        "content": "x",
    }
    for given, seen in (
        ({"reasoning": "r"}, "r"),
        ({"reasoning_content": "c"}, "c"),
        ({"reasoning": "r", "reasoning_content": "c"}, "r"),
    ):
        assert _one({"role": "assistant", "content": "x", **given}) == {
            "role": "assistant",
            "content": "x",
            "reasoning": seen,
            "reasoning_content": seen,
        }


def test_names_and_tasks() -> None:
    assert _one({"role": "user", "content": "x", "name": "n", "task": "t"}) == {
        "role": "user",
        "content": "x",
        "name": "n",
        "task": "t",
    }


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("x", Reason.INVALID),
        ({"content": "x"}, Reason.INVALID),
        ({"role": 1, "content": "x"}, Reason.INVALID),
        ({"role": "user", "content": None}, Reason.INVALID),
        ({"role": "user", "content": 5}, Reason.INVALID),
        ({"role": "user", "content": {"type": "text"}}, Reason.INVALID),
        ({"role": "user", "content": [5]}, Reason.INVALID),
        ({"role": "user", "content": [{"text": "x"}]}, Reason.INVALID),
        ({"role": "user", "content": [_text(1)]}, Reason.INVALID),
        ({"role": "user", "content": [_text("x", uuid="u")]}, Reason.INVALID),
        ({"role": "user", "content": [{"type": "thinking"}]}, Reason.INVALID),
        ({"role": "user", "content": [{"type": "odd"}]}, Reason.INVALID),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, Reason.MEDIA),
        ({"role": "user", "content": [{"type": "input_audio"}]}, Reason.MEDIA),
        ({"role": "user", "content": [{"image_url": "u"}]}, Reason.MEDIA),
        ({"role": "user", "content": "x", "name": None}, Reason.INVALID),
        ({"role": "developer", "content": "x", "tools": []}, Reason.ITEM),
        ({"role": "assistant", "content": "x", "reasoning": 1}, Reason.INVALID),
        ({"role": "assistant", "content": "x", "tool_calls": {}}, Reason.INVALID),
        ({"role": "assistant", "tool_calls": [{**_CALL, "type": "custom"}]}, Reason.INVALID),
        ({"role": "assistant", "tool_calls": [{**_CALL, "id": None}]}, Reason.INVALID),
        ({"role": "assistant", "tool_calls": [{**_CALL, "function": None}]}, Reason.INVALID),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, Reason.INVALID),
    ],
)
def test_what_is_not_read(message: Any, reason: Reason) -> None:
    for content_format in (STRING, OPENAI):
        with pytest.raises(Unreadable) as caught:
            converse([message], content_format)
        assert caught.value.reason == reason


def test_developers_become_one_system_at_the_front() -> None:
    user = {"role": "user", "content": "u"}
    system = {"role": "system", "content": [_text("s"), _text("t")]}
    developer = {"role": "developer", "content": "d", "tools": None, "name": "n"}

    assert as_system([developer, user]) == [{"role": "system", "content": "d", "name": "n"}, user]
    assert as_system([system, user, developer]) == [
        {"role": "system", "content": "s\nt\n\nd"},
        user,
    ]
    assert as_system([user, developer]) == [{"role": "system", "content": "d"}, user]
