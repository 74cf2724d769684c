"""Vectors of the wire put to an implementation that is wrong about one thing."""

import json
from typing import Any

from support.harnesses import VECTORS, Bend, Bent
from transload_abi.harness.protocol import Answer, Declined, Done, Fields
from transload_abi.harness.report import run as run_vectors
from transload_abi.wire import cli
from transload_abi.wire.conformance.checks import vectors_in
from transload_abi.wire.conformance.ours import ours

FOLDER = VECTORS / "wire"
FRAMES = FOLDER / "frames.json"
OURS = ours(cli._compare)
SESSIONS: dict[str, Any] = {
    file.stem: json.loads(file.read_text()) for file in (FOLDER / "sessions").iterdir()
}
ASK_FOR = {
    "decode_message": ("messages/", "refused/"),
    "encode_message": ("messages/",),
    "decode_frames": ("frames/",),
    "prove": ("proofs/",),
    "payload": ("payloads/",),
    "play": ("sessions/",),
}


def failures(operation: str, bend: Bend) -> dict[str, str]:
    """By vector of those that ask for the operation, its first failure."""
    vectors = vectors_in(FOLDER, Bent(OURS, operation, bend))
    concerned = [each for each in vectors if each[0].startswith(ASK_FOR[operation])]
    return {each.name: each.failures[0] for each in run_vectors(concerned) if each.failures}


def names(prefix: str) -> set[str]:
    return {name for name, _ in vectors_in(FOLDER, OURS) if name.startswith(prefix)}


def declines(answer: Answer, _asked: Fields) -> Answer:
    return Declined("bad", "here", "no") if isinstance(answer, Done) else answer
