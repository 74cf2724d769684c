"""Content formats, for each shape as vLLM 0.32.0's `_detect_content_format` has it."""

import pytest

from support.small_tokenizers import noon
from transload_router.core.tokens.template import Template

_PRINT = "{% for p in x %}{{ p }}{% endfor %}"


def _loop(body: str, over: str = "messages") -> str:
    return f"{{% for m in {over} %}}{body}{{% endfor %}}"


def _inner(over: str) -> str:
    return _PRINT.replace("in x", f"in {over}")


def _macro(head: str, over: str, call: str) -> str:
    return f"{{% macro {head} %}}{_inner(over)}{{% endmacro %}}" + _loop(f"{{{{ {call} }}}}")


@pytest.mark.parametrize(
    "source",
    [
        _loop(_inner("m.content")),
        _loop(_inner("m['content']")),
        _loop(_inner("m.content[1:]")),
        _loop(_inner("m.content | list")),
        _loop(_inner("m.content is iterable")),
        _loop(_inner("m.content"), "messages | selectattr('role')"),
        "{% set ms = messages[1:] %}" + _loop(_inner("m['content']"), "ms"),
        "{% set a = messages %}{% set b = a | list %}" + _loop(_inner("m.content"), "b"),
        "{% set messages = messages %}" + _loop(_inner("m.content")),
        _loop("{% set content = m.content %}" + _inner("content")),
        _inner("content") + _loop("{{ m }}"),
        _macro("r(c)", "c", "r(m.content)"),
        _macro("r(a, c)", "c", "r(1, c=m['content'])"),
        _macro("r(content)", "content", "r(m.content)"),
        _macro("r(c)", "c", "r(m.content)") + _macro("q(x)", "x", "q(1)"),
        _loop(_inner("m.content") + "{% for a, b in m.content %}{% endfor %}"),
    ],
)
def test_parts(source: str) -> None:
    assert Template(source, noon).content_format == "openai"


@pytest.mark.parametrize(
    "source",
    [
        _loop("{{ m.content }}"),
        "{{ messages[0].content }}",
        _inner("messages[0].content"),
        "{% set s = messages[0] %}" + _inner("s.content"),
        _loop("{% set text = m.content %}" + _inner("text")),
        _macro("r(c)", "c", "r(m.tool_calls)"),
        _macro("r(content)", "content", "r(m.tool_calls)"),
        "{% macro r(x) %}{% for q in x %}"
        + _inner("content")
        + "{% endfor %}{% endmacro %}"
        + _loop("{{ m }}"),
        "{% set ns = namespace(a=messages) %}" + _loop(_inner("m.content"), "ns.a"),
        "{% for a, b in messages %}{{ a }}{% endfor %}",
        _loop("{% for a, b in m.content %}{{ a }}{% endfor %}"),
        "{% set a, b = messages %}" + _loop(_inner("m.content")),
        _loop("{% generation %}{{ m.content }}{% endgeneration %}"),
    ],
)
def test_text(source: str) -> None:
    assert Template(source, noon).content_format == "string"
