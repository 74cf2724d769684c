"""One field in which two sides differ, what follows from it, and the words for it."""

from typing import Literal, NamedTuple

from transload_abi.compare_words import short

Verdict = Literal["identical", "lossless", "lossy", "refused"]


class Difference(NamedTuple):
    """One field in which the sides differ.

    Attributes:
        path: Of the field in the destination.
        field: Its name for people.
        src: What the source says, in words.
        dst: What the destination says.
        verdict: What follows from this difference alone.
        reason: A sentence for an operator.
    """

    path: str
    field: str
    src: str
    dst: str
    verdict: Verdict
    reason: str


def differ(
    path: str, field: str, words: tuple[object, object], verdict: Verdict, note: str = ""
) -> Difference:
    """A difference, with a sentence of it."""
    src, dst = (short(str(each)) for each in words)
    reason = f"{field}: {src} at the source, {dst} at the destination"
    return Difference(path, field, src, dst, verdict, f"{reason}: {note}" if note else reason)
