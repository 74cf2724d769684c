"""Streams of events, in any mixture of line ends, cut anywhere: the same bytes, whole events."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from transload_router.core.sse import EventFramer, event_data, split_events

LINE_ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
FIELDS = st.sampled_from(
    [b"data: {}", b"data:x", b"data: ", b": ping", b"event: e", b"id", b"data: [DONE]", b"x"]
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=4)
LINES = st.one_of(FIELDS, TEXTS.map(lambda text: b"data: " + text.encode()))
EVENTS = st.lists(st.tuples(LINES, LINE_ENDS).map(b"".join), min_size=1, max_size=3).flatmap(
    lambda lines: LINE_ENDS.map(lambda end: b"".join(lines) + end)
)
STREAMS = st.tuples(st.lists(EVENTS, max_size=5), st.sampled_from([b"", b"data: cu", b"\r", b"\n"]))

# The grammar of the specification, written without the framer's expressions: an event ends
# with a line end that follows a line end.
_ENDS_HERE = re.compile(rb"(\n\n|\n\r\n|\n\r|\r\r|\r\r\n|\r\n\n|\r\n\r\n|\r\n\r)\Z")


def joined(drawn: tuple[list[bytes], bytes]) -> bytes:
    return b"".join(drawn[0]) + drawn[1]


def check(stream: bytes, cuts: list[int]) -> None:
    framer = EventFramer()
    given_out = b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        out = framer.push(stream[start:end])
        given_out += out
        # Two line ends in a row, seen over all that the client has.
        assert not out or _ENDS_HERE.search(given_out)
    held = framer.flush()
    assert given_out + held == stream
    # What is held back holds no whole event; a lone \n may be the rest of the last one's end.
    assert len(split_events(held.removeprefix(b"\n"))) <= 1


@settings(max_examples=60, deadline=None)
@given(STREAMS.map(joined))
def test_cut_at_every_offset(stream: bytes) -> None:
    for cut in range(len(stream) + 1):
        check(stream, [cut])
    check(stream, list(range(1, len(stream))))


@settings(max_examples=100, deadline=None)
@given(STREAMS.map(joined), st.data())
def test_cut_anywhere(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    check(stream, sorted(cuts))


@settings(max_examples=100, deadline=None)
@given(STREAMS.map(joined))
def test_split_loses_nothing(stream: bytes) -> None:
    events = split_events(stream)
    assert b"".join(events) == stream
    assert all(events)
    data = [event_data(event) for event in events]
    # Line ends do not matter to what events say.
    plain = re.sub(rb"\r\n|\r", b"\n", stream)
    assert [event_data(event) for event in split_events(plain)] == data
