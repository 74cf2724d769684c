"""What is asked of an implementation and what it may answer, as values and as lines of JSON."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from transload_abi.errors import AbiError
from transload_abi.limits import MAX_QUOTED_CHARS

Fields = dict[str, Any]
"""A JSON object."""

MAX_LINE_BYTES: Final = 1 << 23
"""Of an answer. A document of the largest size, as text and as hex of its twin, takes 3 MiB."""

MAX_SAID_CHARS: Final = 300
"""Of what an implementation says for people, as far as it is shown."""


class HarnessFailed(AbiError):
    """A harness breaks the rules of `HARNESS.md`: its author has to mend it, and no vector says so.

    It is not to be asked again.
    """


class NotOffered(Exception):
    """An operation that the implementation does not offer; the text says which and why."""


class Done(NamedTuple):
    """An operation was carried out, and this is what came of it."""

    fields: Fields


class Declined(NamedTuple):
    """An operation was refused, as it may have to be.

    Attributes:
        code: Why, where the operation has several reasons.
        path: Of the field that is wrong; empty where that says nothing.
        says: For people.
    """

    code: str = ""
    path: str = ""
    says: str = ""

    def __str__(self) -> str:
        words = ": ".join(each for each in (self.code, self.path, self.says) if each)
        return f"a refusal ({words[:MAX_SAID_CHARS]})" if words else "a refusal"


class Unsupported(NamedTuple):
    """The implementation does not offer that."""

    reason: str


Answer = Done | Declined | Unsupported


class Implementation(Protocol):
    """Whatever vectors are put to."""

    def ask(self, operation: str, fields: Fields) -> Answer:
        """Carry an operation out.

        Raises:
            HarnessFailed: It gives no answer, or none that is allowed.
        """
        ...


class InProcess:
    """An implementation in Python.

    Args:
        operations: By name; each takes a request's fields and returns an answer's.
        refusals: By the error that an operation ends with, the code under which that is a refusal;
            the first that fits. Other errors are raised.
    """

    def __init__(
        self,
        operations: Mapping[str, Callable[[Fields], Fields]],
        refusals: Mapping[type[Exception], str],
    ) -> None:
        self._operations = operations
        self._refusals = refusals

    def ask(self, operation: str, fields: Fields) -> Answer:
        """See `Implementation`."""
        act = self._operations.get(operation)
        if act is None:
            return Unsupported("no such operation")
        try:
            return Done(act(fields))
        except tuple(self._refusals) as error:
            code = next(c for kind, c in self._refusals.items() if isinstance(error, kind))
            path = getattr(error, "path", "")
            return Declined(code, path, str(error).removeprefix(f"{path}: "))


def asked(by: Implementation, operation: str, **fields: Any) -> Done | Declined:
    """The answer to an operation that has to be offered.

    Raises:
        NotOffered: It is not.
        HarnessFailed: See `Implementation`.
    """
    answer = by.ask(operation, fields)
    if isinstance(answer, Unsupported):
        raise NotOffered(f"{operation}: {answer.reason[:MAX_SAID_CHARS]}")
    return answer


def request_line(number: int, operation: str, fields: Fields) -> bytes:
    """A request as it is sent."""
    request = {"id": number, "op": operation, "args": fields}
    return json.dumps(request, separators=(",", ":")).encode() + b"\n"


def answer_line(number: int, answer: Answer) -> bytes:
    """An answer as it is sent."""
    said: Fields = {"id": number}
    if isinstance(answer, Done):
        said["ok"] = answer.fields
    elif isinstance(answer, Declined):
        said["refused"] = {name: item for name, item in answer._asdict().items() if item}
    else:
        said["unsupported"] = answer.reason
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def read_request(line: bytes) -> tuple[int, str, Fields]:
    """A request's number, operation and fields.

    Raises:
        HarnessFailed: It is none.
    """
    match _object(line):
        case {"id": int(number), "op": str(operation), "args": dict(fields)}:
            return number, operation, fields
    raise HarnessFailed(f"expected a request, got {_shown(line)}")


def read_answer(line: bytes, number: int) -> Answer:
    """The answer to the request of a number.

    Raises:
        HarnessFailed: It is none, or another's.
    """
    said = _object(line)
    if said.get("id") != number or isinstance(said["id"], bool):
        raise HarnessFailed(f"expected the answer to request {number}, got {_shown(line)}")
    match said:
        case {"id": _, "ok": dict(fields), **rest} if not rest:
            return Done(fields)
        case {"id": _, "refused": dict(why), **rest} if not rest:
            known = {name: why.get(name, "") for name in Declined._fields}
            if all(isinstance(each, str) for each in known.values()):
                return Declined(**known)
        case {"id": _, "unsupported": str(reason), **rest} if not rest:
            return Unsupported(reason)
    raise HarnessFailed(f"expected ok, refused or unsupported, got {_shown(line)}")


def _object(line: bytes) -> Fields:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HarnessFailed(f"expected a line with a JSON object, got {_shown(line)}")
    return found


def _shown(line: bytes) -> str:
    text = line[:MAX_QUOTED_CHARS].decode(errors="replace").rstrip("\n")
    return repr(text) + ("..." if len(line) > MAX_QUOTED_CHARS else "")
