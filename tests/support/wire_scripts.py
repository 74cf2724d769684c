"""Conversations with one machine of the wire: what is done to it, and what it must say, as lines.

A `Do` is something that happens to the machine; any other line is what must come of it: messages
that it sends, events, answers of calls. Both sides are shown when they differ.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from transload_abi.wire import codec, frames, messages


@dataclass(frozen=True)
class Do:
    """Something that happens to a machine."""

    name: str
    does: Callable[[Any], None]


@dataclass(frozen=True)
class On:
    """A message on a data stream."""

    stream: int
    message: object


@dataclass(frozen=True)
class Descriptor:
    """A descriptor on the control stream."""

    body: bytes


@dataclass(frozen=True)
class Said:
    """What a call has answered."""

    answer: object


@dataclass(frozen=True)
class Script:
    """A conversation as it should be.

    Attributes:
        lines: What is done, each followed by what must come of it.
        ends: The machine's last state.
        world: Settings of the machine's surroundings.
    """

    name: str
    lines: tuple[object, ...]
    ends: str
    world: dict[str, Any] = field(default_factory=dict)


class World(Protocol):
    """A machine with its surroundings."""

    state: str

    def tells(self) -> list[object]:
        """What came of the last `Do`."""


def script(name: str, *lines: object, ends: str, **world: Any) -> Script:
    """A script, its lines written as arguments."""
    return Script(name, lines, ends, world)


def play(expected: Script, world: Callable[..., Any]) -> None:
    """Do what the script says to a new machine.

    Raises:
        AssertionError: What came of it is not as written; the message shows both.
    """
    here = world(**expected.world)
    actual: list[str] = []
    for line in expected.lines:
        if isinstance(line, Do):
            actual.append(f">> {line.name}")
            try:
                line.does(here)
            except (AssertionError, KeyError, ValueError) as error:
                actual.append(f"!! {error!r}")
            actual.extend(f"<< {each!r}" for each in here.tells())
    actual.append(f"== {here.state}")
    wanted = [
        f">> {line.name}" if isinstance(line, Do) else f"<< {line!r}" for line in expected.lines
    ]
    wanted.append(f"== {expected.ends}")
    if actual != wanted:
        raise AssertionError(f"{expected.name}\n{_side_by_side(wanted, actual)}")


def is_red(one: Script, world: Callable[..., Any]) -> bool:
    """Whether a script notices what was done to the table."""
    try:
        play(one, world)
    except AssertionError:
        return True
    return False


def messages_in(data: bytes, sender: codec.Sender) -> list[messages.Message | Descriptor]:
    """Messages and descriptors that a machine has sent."""
    told: list[messages.Message | Descriptor] = []
    for frame in frames.FrameDecoder(max_descriptor_bytes=1 << 20).feed(data):
        if isinstance(frame, frames.DescriptorFrame):
            told.append(Descriptor(frame.body))
        elif isinstance(frame, frames.MessageFrame):
            told.append(codec.decode(frame.body, sender))
    return told


def _side_by_side(wanted: list[str], actual: list[str]) -> str:
    rows = []
    for index in range(max(len(wanted), len(actual))):
        left = wanted[index] if index < len(wanted) else "(nothing)"
        right = actual[index] if index < len(actual) else "(nothing)"
        rows.append(f"   {left}" if left == right else f"-> {left}\n   instead of it: {right}")
    return "\n".join(rows)
