"""Files of vectors, as far as their outermost brackets are right."""

import json
from pathlib import Path

from transload_abi.errors import VectorFailed
from transload_abi.harness.protocol import Fields


def read_objects(file: Path) -> list[Fields]:
    """A list of objects; none where there is no such file.

    Raises:
        VectorFailed: It is none, or cannot be read.
    """
    return objects(_read(file), file.name) if file.exists() else []


def read_object(file: Path) -> Fields:
    """An object; empty where there is no such file.

    Raises:
        VectorFailed: It is none, or cannot be read.
    """
    found = _read(file) if file.exists() else {}
    if not isinstance(found, dict):
        raise VectorFailed("expected an object", file.name)
    return found


def objects(found: object, name: str) -> list[Fields]:
    """A list of objects.

    Raises:
        VectorFailed: It is none.
    """
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise VectorFailed("expected a list of objects", name)
    return found


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise VectorFailed(f"cannot be read: {error!r}", file.name) from error
