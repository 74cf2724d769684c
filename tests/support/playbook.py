"""Conversations with the handoff machine: events in, expected commands out, both on failure."""

from dataclasses import dataclass, field
from typing import get_args

from transload_router.core.handoff import Command, Event, Handoff, HandoffPolicy, State

Line = Event | Command

_EVENTS = get_args(Event)
_NARROW = 62


@dataclass(frozen=True)
class Script:
    """A conversation as it should be.

    Attributes:
        lines: What the machine says at the start, then events, each followed by the commands
            that must answer it.
        ends: The machine's last state.
    """

    name: str
    lines: tuple[Line, ...]
    wants_prefill: bool = True
    policy: HandoffPolicy = field(default_factory=HandoffPolicy)
    ends: State = State.DONE


def script(
    name: str,
    *lines: Line,
    wants_prefill: bool = True,
    policy: HandoffPolicy | None = None,
    ends: State = State.DONE,
) -> Script:
    """A script, its lines written as arguments."""
    return Script(name, lines, wants_prefill, policy or HandoffPolicy(), ends)


def play(expected: Script) -> None:
    """Feed the script's events to a new machine.

    Raises:
        AssertionError: The machine's commands, its last state, or a handoff that it still
            holds when done are not as written; the message shows both scripts.
    """
    machine = Handoff(expected.policy, expected.wants_prefill)
    actual: list[str] = [_show(command) for command in machine.start()]
    for line in expected.lines:
        if not isinstance(line, _EVENTS):
            continue
        actual.append(_show(line))
        try:
            actual.extend(_show(command) for command in machine.handle(line))
        except AssertionError as error:
            actual.append(f"!! {error}")
            break
    actual.append(f"== {machine.state}")
    if machine.state is State.DONE and machine.handoff is not None:
        actual.append(f"!! still holds {machine.handoff!r}")
    wanted = [*map(_show, expected.lines), f"== {expected.ends}"]
    if actual != wanted:
        raise AssertionError(f"{expected.name}\n{_side_by_side(wanted, actual)}")


def _show(line: Line) -> str:
    return f"{'>>' if isinstance(line, _EVENTS) else '<<'} {line!r}"


def _side_by_side(wanted: list[str], actual: list[str]) -> str:
    rows = [f"   {'expected':<{_NARROW}} actual"]
    for index in range(max(len(wanted), len(actual))):
        left = wanted[index] if index < len(wanted) else ""
        right = actual[index] if index < len(actual) else ""
        rows.append(f"{'  ' if left == right else '->'} {left:<{_NARROW}} {right}")
    return "\n".join(rows)
