"""Plays each side of the recorded sessions: the other side's bytes go in, its own must come out.

Whatever WIRE.md leaves to a side may be otherwise than recorded: the words of reasons, how data are
cut and in which order they come, in which order requests are answered. Data of reads that end
otherwise than by `read_end` are worthless and not looked at.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transload_abi.harness.protocol import Declined, Fields, Implementation, asked
from transload_abi.harness.report import Vectors, unequal
from transload_abi.wire.conformance.files import objects, read_object
from transload_abi.wire.conformance.said import DataSaid, Listener, Said, words_of

_ABOUT_OPEN = ("read", "map", "confirm", "renew", "done", "release")


class Scene(NamedTuple):
    """What happens to a side, and what was recorded of it until something else happens.

    Attributes:
        event: As the side is told.
        due: The steps that are its own.
    """

    event: Fields
    due: list[Fields]


def sessions_in(folder: Path, by: Implementation) -> Vectors:
    """The sides of the sessions in a folder that behave as they should.

    Raises:
        VectorFailed: A file cannot be read.
    """
    vectors: Vectors = []
    for file in sorted(folder.glob("*.json")):
        session = read_object(file)
        objects(session.get("steps"), f"{file.name}: steps")
        for side in ("holder", "reader"):
            if side in session:
                vectors.append((f"sessions/{file.stem}/{side}", check_side(session, side, by)))
    return vectors


def check_side(session: Fields, side: str, by: Implementation) -> Iterator[str]:
    """Differences between what a side says, and takes, and what was recorded."""
    scenes = list(_holder_scenes(session) if side == "holder" else _reader_scenes(session))
    events = [scene.event for scene in scenes]
    answer = asked(by, "play", side=side, **session[side], events=events)
    if isinstance(answer, Declined):
        yield f"got {answer}"
        return
    yield from _said_differences(scenes, answer.fields.get("said"), side, session)
    if side == "reader":
        yield from unequal("bytes of the reads", answer.fields.get("reads"), session["reads"])


# --- scenes


def _holder_scenes(session: Fields) -> Iterator[Scene]:
    """Each frame of the reader, and the end of the lease where a read learns of it."""
    scenes: list[Scene] = []
    has_expired = False
    for step in session["steps"]:
        if step["from"] == "reader":
            scenes.append(Scene({"stream": step["stream"], "bytes": step["bytes"]}, []))
            continue
        if not has_expired and _says(step, "expired", why="expired"):
            has_expired = True
            scenes.append(Scene({"expire": True}, []))
        scenes[-1].due.append(step)
    for scene in scenes:
        num_bytes = sum(len(step.get("data", "")) // 2 for step in scene.due)
        yield Scene({**scene.event, "data_bytes": num_bytes}, scene.due)


def _reader_scenes(session: Fields) -> Iterator[Scene]:
    """Each frame of the holder, and each wish of the reader's owner."""
    scenes: list[Scene] = []
    for step in _as_asked(session["steps"]):
        if step["from"] == "holder":
            scenes.append(Scene({"stream": step["stream"], "bytes": step["bytes"]}, []))
            continue
        if not step.get("follows"):
            scenes.append(Scene({"ask": _wish(step["message"])}, []))
        scenes[-1].due.append(step)
    yield from scenes


def _wish(message: Fields) -> Fields:
    """A message without what a reader adds by itself."""
    if message["type"] == "hello":
        return {"type": "hello"}
    return {name: item for name, item in message.items() if name not in ("session", "proof")}


def _as_asked(steps: list[Fields]) -> list[Fields]:
    """The steps; what a reader asks of an expired handoff comes ahead of what it knows it by."""
    steps = list(steps)
    for at in range(len(steps) - 1):
        asks = steps[at + 1].get("message", {}).get("type") in _ABOUT_OPEN
        if _says(steps[at], "expired") and asks:
            steps[at : at + 2] = steps[at + 1], steps[at]
    return steps


# --- what was said


def _said_differences(
    scenes: list[Scene], said: object, sender: str, session: Fields
) -> Iterator[str]:
    if not isinstance(said, list) or len(said) != len(scenes):
        yield f"said: expected a list of {len(scenes)} lists, got {_brief(said)}"
        return
    listener = Listener("holder" if sender == "holder" else "reader")
    whole = {int(read): bytes.fromhex(data) for read, data in session["reads"].items()}
    data = DataSaid(whole, _reads(session))
    for number, (scene, frames) in enumerate(zip(scenes, said, strict=True)):
        what = f"event {number}"
        heard, problem = listener.hear(frames)
        if problem:
            yield f"{what}: {problem}"
            return
        for each in heard:
            yield from (f"{what}: {sentence}" for sentence in data.take(each))
        found = [each for each in heard if not each.is_data]
        due = [Said.of_step(step) for step in scene.due if "data" not in step]
        yield from unequal(what, words_of(found), words_of(due))


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


# --- of a session


def _says(step: Fields, kind: str, **fields: object) -> bool:
    message: Fields = step.get("message", {})
    return bool(message.get("type") == kind and fields.items() <= message.items())


def _reads(session: Fields) -> dict[int, Fields]:
    """What was asked for, by the read's id."""
    return {
        step["message"]["id"]: step["message"] for step in session["steps"] if _says(step, "read")
    }
