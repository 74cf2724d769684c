"""Jinja's immutable sandbox, with a short way to what templates mostly ask for.

`SandboxedEnvironment.getattr` raises and catches an exception for each member of a message, and
then runs a dozen type checks; that is most of a template's time. For exactly the types below the
outcome is known from the name alone, and is the same (`tests/unit/router/tokens/test_sandbox.py`
compares). Everything else goes the sandbox's own way.
"""

from typing import Any

from jinja2 import Undefined
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MISSING = object()
_DICT_ATTRIBUTES = frozenset(dir(dict))
_STR_METHODS = frozenset(name for name in dir(str) if not name.startswith("_")) - {
    "format",
    "format_map",
}
_LOOP_NUMBERS = frozenset(
    {"depth", "depth0", "first", "index", "index0", "last", "length", "revindex", "revindex0"}
)
_PLAIN = frozenset({bool, dict, float, int, list, str, type(None)})
_ATTRIBUTES = "_Namespace__attrs"


class Sandbox(ImmutableSandboxedEnvironment):
    """`ImmutableSandboxedEnvironment`, quicker."""

    def getattr(self, obj: Any, attribute: str) -> Any | Undefined:
        """What `obj.attribute` is in a template."""
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_ATTRIBUTES:
                value = obj.get(attribute, _MISSING)
                return self.undefined(obj=obj, name=attribute) if value is _MISSING else value
        elif kind is str:
            if attribute in _STR_METHODS:
                return getattr(obj, attribute)
        elif kind is LoopContext:
            if attribute in _LOOP_NUMBERS:
                return getattr(obj, attribute)
        elif kind is Namespace and not attribute.startswith("_"):
            value = object.__getattribute__(obj, _ATTRIBUTES).get(attribute, _MISSING)
            if type(value) in _PLAIN:
                return value
        return super().getattr(obj, attribute)
