"""Both machines in the vectors' sessions: byte for byte what somebody else's code has written."""

import pytest

from support.wire_sessions import SESSIONS, HolderSide, ReaderSide, descriptor_of
from transload_abi.wire.reader_events import ReadComplete, ReadFailed
from transload_abi.wire.session_events import SessionEnded

OURS = descriptor_of(SESSIONS["control-stream"], "holder")
EVERY = pytest.mark.parametrize("name", SESSIONS)


@EVERY
def test_our_holder(name: str) -> None:
    assert OURS is not None
    HolderSide(SESSIONS[name], OURS).play()


# A reader with another token than its holder's ends the session itself.
@pytest.mark.parametrize("name", sorted(set(SESSIONS) - {"wrong-token"}))
def test_our_reader(name: str) -> None:
    events = ReaderSide(SESSIONS[name]).play()
    assert isinstance(events[-1], SessionEnded)
    reads = [step["message"]["id"] for step in SESSIONS[name]["steps"] if _is_read(step)]
    outcomes = [each for each in events if isinstance(each, ReadComplete | ReadFailed)]
    assert sorted(each.read for each in outcomes) == reads
    is_whole = name in ("control-stream", "two-streams")
    assert {type(each) for each in outcomes} <= {ReadComplete if is_whole else ReadFailed}


def _is_read(step: dict[str, object]) -> bool:
    message = step.get("message")
    return isinstance(message, dict) and message["type"] == "read"
