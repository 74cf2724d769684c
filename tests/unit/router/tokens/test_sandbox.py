"""The quick sandbox gives what jinja's gives, for every type and name that it shortens."""

import contextlib
from typing import Any

import jinja2
import pytest
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from transload_router.core.tokens.sandbox import Sandbox


class _Dict(dict[str, Any]):
    """No plain dict: its attributes may be anything."""

    role = "of the class"


def _loop() -> LoopContext:
    loop = LoopContext(["a", "b", "c"], jinja2.Undefined)
    next(loop)
    return loop


_OBJECTS: dict[str, Any] = {
    "dict": {"role": "user", "none": None, "items": "shadowed", "_hidden": 1, "__class__": 2},
    "subclass": _Dict(role="of the item"),
    "str": "Some {0} text",
    "list": [1, 2],
    "loop": _loop(),
    "namespace": Namespace(n=1, text="t", none=None, method="x".upper, made="{}".format),
    "function": _loop,
    "type": str,
    "number": 7,
    "undefined": jinja2.Undefined(name="u"),
}
_NAMES = sorted(
    {name for obj in _OBJECTS.values() for name in object.__dir__(obj)}
    | {"role", "none", "nope", "n", "text", "method", "made", "format", "format_map", "_hidden", ""}
)


def _outcome(environment: ImmutableSandboxedEnvironment, obj: Any, name: str) -> object:
    """What a template sees, in a form that can be compared."""
    try:
        value = environment.getattr(obj, name)
    except Exception as error:
        return type(error), str(error)
    if isinstance(value, jinja2.Undefined):
        return (
            type(value),
            value._undefined_name,
            value._undefined_exception,
            str(value._undefined_hint),
        )
    if callable(value):
        return getattr(value, "__name__", None), getattr(value, "__self__", None) is obj
    return value


@pytest.mark.parametrize("name", _OBJECTS)
def test_every_attribute_is_what_it_is_in_jinjas_own(name: str) -> None:
    obj = _OBJECTS[name]
    for attribute in _NAMES:
        ours = _outcome(Sandbox(), obj, attribute)
        theirs = _outcome(ImmutableSandboxedEnvironment(), obj, attribute)
        assert ours == theirs, (name, attribute)


@pytest.mark.parametrize(
    "source",
    [
        "{{ x.append(1) }}",
        "{{ d.update({'a': 1}) }}",
        "{{ d.clear() }}",
        "{{ d.role.__class__.__mro__ }}",
        "{{ '{0.__class__}'.format(d) }}",
        "{% set f = '{0.__class__}'.format %}{{ f(d) }}",
        "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(d) }}",
    ],
)
def test_nothing_is_let_through(source: str) -> None:
    template = Sandbox().from_string(source)

    # What is not refused renders as nothing.
    with contextlib.suppress(SecurityError, jinja2.UndefinedError):
        assert template.render(x=[], d={"role": "user"}) == ""
