"""Parts of the vectors, and implementations that are wrong about one thing."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from transload_abi.harness.protocol import Answer, Done, Fields, Implementation

VECTORS = Path(__file__).parents[1] / "vectors"

Bend = Callable[[Answer, Fields], Answer]
"""From the right answer and what was asked to a wrong one, which may have spoilt files as well."""


def take_abi_vectors(target: Path, names: Iterable[str]) -> None:
    """Copy vectors: folders as `decode/bare`, documents as `accepted/plain.json`."""
    source = VECTORS / "abi"
    documents: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        kind, file = name.split("/")
        if kind in ("decode", "convert"):
            shutil.copytree(source / name, target / name)
            continue
        index = json.loads((source / kind / "index.json").read_bytes())
        (entry,) = [each for each in index if each["file"] == file]
        documents.setdefault(kind, []).append(entry)
        for each in {name, entry.get("canonical", name)}:
            (target / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / each, target / each)
    for kind, entries in documents.items():
        (target / kind / "index.json").write_text(json.dumps(entries))


class Bent:
    """An implementation that answers one operation wrongly.

    Args:
        right: Is asked for all answers.
        operation: Whose answers are bent.
        bend: Makes them wrong.
    """

    def __init__(self, right: Implementation, operation: str, bend: Bend) -> None:
        self._right = right
        self._operation = operation
        self._bend = bend

    def ask(self, operation: str, fields: Fields) -> Answer:
        answer = self._right.ask(operation, fields)
        return self._bend(answer, fields) if operation == self._operation else answer


def says(**changed: Any) -> Bend:
    """Other fields, where something was done; those that are functions take what was there."""

    def bend(answer: Answer, _asked: Fields) -> Answer:
        if not isinstance(answer, Done):
            return answer
        new = {
            name: change(answer.fields[name]) if callable(change) else change
            for name, change in changed.items()
        }
        return Done({**answer.fields, **new})

    return bend


def does_all(answer: Answer, _asked: Fields) -> Answer:
    """Nothing is refused."""
    return answer if isinstance(answer, Done) else Done({})
