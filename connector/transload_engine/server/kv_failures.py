"""Why a load failed, from what went wrong on the way."""

import re
from collections.abc import Iterator
from typing import Final

from msgspec import inspect

from transload_abi import AbiError, Descriptor, PlanError
from transload_abi.wire.errors import WireError
from transload_connector.transports.errors import (
    ClientClosed,
    LeaseGone,
    NotShared,
    PeerFault,
    PeerRefused,
    PeerUnreachable,
    TimedOut,
    TransferError,
)
from transload_engine.core.handoff import OWN_KEY, WIRE, Handoff
from transload_engine.core.transfers import FailedLoad, LoadProblem

_PROBLEMS: Final[dict[type[TransferError], LoadProblem]] = {
    PeerUnreachable: LoadProblem.UNREACHABLE,
    PeerRefused: LoadProblem.REFUSED,
    LeaseGone: LoadProblem.EXPIRED,
    PeerFault: LoadProblem.CORRUPT,
    TimedOut: LoadProblem.TIMEOUT,
    NotShared: LoadProblem.REFUSED,
    ClientClosed: LoadProblem.ABORTED,
}

_PATH: Final = re.compile(r"(?:^|: )((?:abi|endian|model|pools|groups)\b[\w.\[\]]{0,80}): ")
"""A descriptor's field in the text of a refusal, which names it before the reason. Strangers write
a part of that text, so whatever else there is in it is no field."""

_INDEX: Final = re.compile(r"\[\d+\]")

OTHER: Final = "other"
"""Stands for what looks like a field, and no descriptor has."""


def failure_of(error: TransferError | AbiError | WireError) -> FailedLoad:
    """What an error of a session, a plan or a conversion is to the request."""
    if isinstance(error, WireError | PlanError):
        # Plans are of the holder's lists, which do not fit what it said of them.
        return FailedLoad(LoadProblem.CORRUPT, str(error))
    if isinstance(error, AbiError):
        return FailedLoad(LoadProblem.REFUSED, str(error), _path(str(error)))
    problem = _PROBLEMS[type(error)]
    path = _path(str(error)) if problem is LoadProblem.REFUSED else ""
    return FailedLoad(problem, str(error), path)


def _fields(kind: inspect.Type, at: str) -> Iterator[tuple[str, bool]]:
    """The paths of a type's fields, and whether what is in them has names of its own."""
    if at:
        yield at, isinstance(kind, inspect.DictType)
    if isinstance(kind, inspect.StructType):
        for each in kind.fields:
            yield from _fields(each.type, f"{at}.{each.encode_name}" if at else each.encode_name)
    elif isinstance(kind, inspect.VarTupleType):
        yield from _fields(kind.item_type, f"{at}[]")


_FIELDS: Final = dict(_fields(inspect.type_info(Descriptor), ""))
"""What a path may be. They are counted by, so there must be no end of strangers' words in them."""


def _path(text: str) -> str:
    found = _PATH.search(text)
    if found is None:
        return ""
    path = _INDEX.sub("[]", found[1])
    named = (at for at, has_names in _FIELDS.items() if has_names and path.startswith(f"{at}."))
    return path if path in _FIELDS else next(named, OTHER)


def foreign(handoff: Handoff) -> FailedLoad:
    """The handoff was written for another connector."""
    return FailedLoad(
        LoadProblem.FOREIGN,
        f"the handoff of engine {handoff.engine_id} at {handoff.host}:{handoff.port} has no "
        f"`{OWN_KEY}` that says {WIRE}: its blocks are read in another way than this engine knows",
    )


def other_prompt(handoff: Handoff, num_held: int, num_asked: int) -> FailedLoad:
    """The handoff is of another prompt than the request's."""
    return FailedLoad(
        LoadProblem.PROMPT,
        f"handoff {handoff.request_id} of engine {handoff.engine_id} holds {num_held} tokens, and "
        f"the prompt has {num_asked}",
    )


def other_tokens(handoff: Handoff) -> FailedLoad:
    """The handoff is of another prompt, which is as long."""
    return FailedLoad(
        LoadProblem.PROMPT,
        f"handoff {handoff.request_id} of engine {handoff.engine_id} holds the blocks of other "
        f"tokens than the prompt's: {handoff.prompt} is not its digest",
    )


def conflict(handoff: Handoff, why: str) -> FailedLoad:
    """The handoff cannot be opened here beside those that are open."""
    return FailedLoad(
        LoadProblem.CONFLICT,
        f"handoff {handoff.request_id} of engine {handoff.engine_id} cannot be opened: {why}",
    )


ABORTED: Final = FailedLoad(LoadProblem.ABORTED, "nobody waits for the request any more")
