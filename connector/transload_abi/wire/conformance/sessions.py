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

_TERM_MS = 30_000
"""Of a lease that the session does not tell of."""

_ABOUT_OPEN = ("read", "confirm", "renew", "done", "release")


class Scene(NamedTuple):
    """What happens to a side, and what was recorded of it until something else happens.

    Attributes:
        event: As the side is told.
        due: The steps that are its own.
    """

    event: Fields
    due: list[Fields]


def sessions_in(folder: Path, by: Implementation) -> Vectors:
    """Both sides of the sessions in a folder.

    All of them are sessions of one holder, so that those in which it never sends its descriptor
    have that of the others. A reader that is told of a bad proof has another token than the vector
    knows, and cannot be played.

    Raises:
        VectorFailed: A file cannot be read.
    """
    sessions = {file.stem: read_object(file) for file in sorted(folder.glob("*.json"))}
    for name, session in sessions.items():
        objects(session.get("steps"), f"{name}.json: steps")
    told = [found for each in sessions.values() if (found := _descriptor(each, "holder"))]
    vectors: Vectors = []
    for name, session in sessions.items():
        holder = _descriptor(session, "holder") or (told[0] if told else None)
        if holder is not None:
            vectors.append((f"sessions/{name}/holder", check_holder(session, holder, by)))
        if not any(_says(step, "error", code="bad_proof") for step in session["steps"]):
            vectors.append((f"sessions/{name}/reader", check_reader(session, by)))
    return vectors


def check_holder(session: Fields, descriptor: Fields, by: Implementation) -> Iterator[str]:
    """Differences between what a holder says and what was recorded."""
    welcome = _first(session, "welcome") or {}
    names = ("engine", "generation", "session", "nonce", "max_data_bytes")
    scenes = list(_holder_scenes(session))
    answer = asked(
        by,
        "play",
        side="holder",
        token=session["token"],
        **{name: welcome[name] for name in names},
        max_streams=welcome.get("max_streams", 0),
        descriptor=descriptor,
        pools=session["memory"],
        handoff=_handoff(session),
        events=[scene.event for scene in scenes],
    )
    if isinstance(answer, Declined):
        yield f"got {answer}"
        return
    yield from _said_differences(scenes, answer.fields.get("said"), "holder", session)


def check_reader(session: Fields, by: Implementation) -> Iterator[str]:
    """Differences between what a reader says and takes, and what was recorded."""
    hello = _first(session, "hello") or {}
    names = ("engine", "generation", "nonce", "max_data_bytes")
    scenes = list(_reader_scenes(session))
    answer = asked(
        by,
        "play",
        side="reader",
        token=session["token"],
        **{name: hello[name] for name in names},
        descriptor=_descriptor(session, "reader"),
        events=[scene.event for scene in scenes],
    )
    if isinstance(answer, Declined):
        yield f"got {answer}"
        return
    yield from _said_differences(scenes, answer.fields.get("said"), "reader", session)
    due = {str(read): data.hex() for read, data in _whole_reads(session).items()}
    yield from unequal("bytes of the reads", answer.fields.get("reads"), due)


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
        message = step.get("message", {})
        if step["from"] == "holder":
            scenes.append(Scene({"stream": step["stream"], "bytes": step["bytes"]}, []))
            continue
        if message and message["type"] != "prove":
            scenes.append(Scene({"ask": _wish(message)}, []))
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
    data = DataSaid(_whole_reads(session), _reads(session))
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
        may_bye = scene is scenes[-1] and not any(_says(step, "bye") for step in scene.due)
        yield from unequal(what, words_of(found, may_bye=may_bye), words_of(due))


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


# --- of a session


def _says(step: Fields, kind: str, **fields: object) -> bool:
    message: Fields = step.get("message", {})
    return bool(message.get("type") == kind and fields.items() <= message.items())


def _first(session: Fields, kind: str) -> Fields | None:
    """The first message of a type."""
    return next((step["message"] for step in session["steps"] if _says(step, kind)), None)


def _descriptor(session: Fields, sender: str) -> Fields | None:
    for step in session["steps"]:
        if step.get("from") == sender and "descriptor" in step:
            descriptor: Fields = step["descriptor"]
            return descriptor
    return None


def _handoff(session: Fields) -> Fields | None:
    """What the holder holds, as far as the session tells of it."""
    request = _first(session, "open") or _first(session, "forgo")
    if request is None:
        return None
    lease = _first(session, "lease") or {}
    return {
        "handoff": request["handoff"],
        "lease": request["lease"],
        "tables": session["handoff"]["tables"],
        "readers": lease.get("readers", 1),
        "num_tokens": lease.get("num_tokens", 1),
        "expires_ms": lease.get("expires_ms", _TERM_MS),
    }


def _reads(session: Fields) -> dict[int, Fields]:
    """What was asked for, by the read's id."""
    return {
        step["message"]["id"]: step["message"] for step in session["steps"] if _says(step, "read")
    }


def _whole_reads(session: Fields) -> dict[int, bytes]:
    """The payload of each read that ended well."""
    ended = {
        step["message"]["id"]: bytearray(step["message"]["num_bytes"])
        for step in session["steps"]
        if _says(step, "read_end")
    }
    for step in session["steps"]:
        if step.get("read") in ended:
            data = bytes.fromhex(step["data"])
            ended[step["read"]][step["offset"] : step["offset"] + len(data)] = data
    return {read: bytes(data) for read, data in ended.items()}
