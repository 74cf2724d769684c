"""Both machines in the vectors' sessions: byte for byte what somebody else's code has written."""

import pytest

from support.wire_sessions import SESSIONS, HolderSide, ReaderSide
from transload_abi.wire.reader_events import ReadComplete, ReadFailed
from transload_abi.wire.session_events import SessionEnded

HOLDERS = [name for name, session in SESSIONS.items() if "holder" in session]
READERS = [name for name, session in SESSIONS.items() if "reader" in session]


@pytest.mark.parametrize("name", HOLDERS)
def test_our_holder(name: str) -> None:
    HolderSide(SESSIONS[name]).play()


@pytest.mark.parametrize("name", READERS)
def test_our_reader(name: str) -> None:
    session = SESSIONS[name]
    events = ReaderSide(session).play()
    assert isinstance(events[-1], SessionEnded)
    asked = [step["message"]["id"] for step in session["steps"] if _is_read(step)]
    outcomes = [each for each in events if isinstance(each, ReadComplete | ReadFailed)]
    assert sorted(each.read for each in outcomes) == asked
    complete = {str(each.read) for each in outcomes if isinstance(each, ReadComplete)}
    assert complete == session["reads"].keys()


def _is_read(step: dict[str, object]) -> bool:
    message = step.get("message")
    return isinstance(message, dict) and message["type"] == "read"
