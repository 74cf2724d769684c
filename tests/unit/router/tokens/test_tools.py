"""Tools as the engine's own models dump them."""

from typing import Any

import pytest

from transload_router.core.tokens.job import Reason, Unreadable
from transload_router.core.tokens.tools import chat_tools


@pytest.mark.parametrize(
    ("tool", "seen"),
    [
        (
            {"type": "function", "function": {"name": "f"}},
            "{'type': 'function', 'function': "
            "{'name': 'f', 'description': None, 'parameters': None}}",
        ),
        (
            {
                "function": {
                    "strict": True,
                    "parameters": {"z": 1, "a": [1.0]},
                    "name": "f",
                    "description": "d",
                    "q": 1,
                },
                "zz": 2,
            },
            "{'type': 'function', 'function': {'name': 'f', 'description': 'd', "
            "'parameters': {'z': 1, 'a': [1.0]}, 'strict': True}}",
        ),
        (
            {"defer_loading": False, "function": {"name": "f", "strict": None}},
            "{'type': 'function', 'function': {'name': 'f', 'description': None, "
            "'parameters': None, 'defer_loading': False}, 'defer_loading': False}",
        ),
        (
            {"function": {"name": "f", "defer_loading": True}},
            "{'type': 'function', 'function': {'name': 'f', 'description': None, "
            "'parameters': None, 'defer_loading': True}}",
        ),
    ],
)
def test_dumps(tool: Any, seen: str) -> None:
    (dump,) = chat_tools([tool]) or []

    assert repr(dump) == seen


def test_no_tools() -> None:
    assert chat_tools(None) is None


@pytest.mark.parametrize(
    "tools",
    [
        {},
        [],
        ["f"],
        [{"name": "f"}],
        [{"type": "custom", "function": {"name": "f"}}],
        [{"function": {}}],
        [{"function": {"name": "f", "description": 1}}],
        [{"function": {"name": "f", "parameters": []}}],
        [{"function": {"name": "f", "strict": "yes"}}],
        [{"function": {"name": "f"}, "defer_loading": 1}],
    ],
)
def test_tools_that_are_not_read(tools: Any) -> None:
    with pytest.raises(Unreadable) as caught:
        chat_tools(tools)
    assert caught.value.reason == Reason.INVALID
