"""A model configuration's rotary embedding as a descriptor's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transload_abi.errors import MalformedDescriptor
from transload_abi.floats import f64
from transload_abi.types import Param


def rope_parameters(values: Mapping[str, object]) -> dict[str, Param]:
    """The parameters of `Rope.params`, from what a model's `config.json` says.

    Floats become `f64:` text, booleans 0 and 1; an inner mapping's names are put behind its own and
    a dot (`rope_scaling.factor`); what is null is left out.

    Raises:
        MalformedDescriptor: A value is none of those, or not finite, or a name is given twice.
    """
    found: dict[str, Param] = {}
    for path, value in _flat(values, ""):
        if path in found:
            raise MalformedDescriptor("given twice", path)
        found[path] = _param(value, path)
    return found


def _flat(values: Mapping[str, object], prefix: str) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            found.append((f"{prefix}{name}", value))
    return found


def _param(value: object, path: str) -> Param:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_scalar(item, path) for item in value]
    return _scalar(value, path)


def _scalar(value: object, path: str) -> int | str:
    if isinstance(value, float):
        try:
            return f64(value)
        except ValueError as error:
            raise MalformedDescriptor(str(error), path) from error
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return value
    raise MalformedDescriptor(
        f"expected a number, text or a list of them, got {type(value).__name__}", path
    )
