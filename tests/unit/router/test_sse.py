"""Where events end, in every style of line end and at every cut."""

import pytest

from transload_router.core.sse import MAX_HELD_BYTES, EventFramer, event_data, split_events

ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n", b"\n\r", b"\r\n\r")


def feed(*chunks: bytes) -> list[bytes]:
    framer = EventFramer()
    return [*(framer.push(chunk) for chunk in chunks), framer.flush()]


@pytest.mark.parametrize("end", ENDS)
def test_whole_events_pass_at_once(end: bytes) -> None:
    assert feed(b"data: a" + end) == [b"data: a" + end, b""]
    two = b"data: a" + end + b"data: b" + end
    assert feed(two) == [two, b""]


@pytest.mark.parametrize("end", ENDS)
def test_half_an_event_is_held_back(end: bytes) -> None:
    first = b"data: a" + end
    assert feed(first + b'data: {"choi', b'ces":[]}' + end) == [
        first,
        b'data: {"choices":[]}' + end,
        b"",
    ]
    assert feed(first + b'data: {"choi') == [first, b'data: {"choi']


def test_one_line_end_ends_no_event() -> None:
    for one in (b"\n", b"\r\n", b"\r"):
        assert feed(b"data: a" + one, b"data: b") == [b"", b"", b"data: a" + one + b"data: b"]
    # Cut inside the pair.
    assert feed(b"data: a\r", b"\n", b"data: b\r\n") == [b"", b"", b"", b"data: a\r\ndata: b\r\n"]


def test_end_across_the_seam() -> None:
    assert feed(b"data: a\n", b"\n") == [b"", b"data: a\n\n", b""]
    assert feed(b"data: a\r\n\r", b"\ndata: b\r\n\r\n") == [
        b"data: a\r\n\r",
        b"\ndata: b\r\n\r\n",
        b"",
    ]
    assert feed(b"data: a\r", b"\n\r\n") == [b"", b"data: a\r\n\r\n", b""]
    assert feed(b"data: a\r\n", b"", b"\r\n") == [b"", b"", b"data: a\r\n\r\n", b""]


def test_cut_inside_a_character() -> None:
    text = "data: 日本😀\n\n".encode()
    for cut in range(1, len(text) - 1):
        assert feed(text[:cut], text[cut:]) == [b"", text, b""]


def test_last_event_is_the_newest_given_out() -> None:
    framer = EventFramer()
    assert framer.last_event == b""
    framer.push(b"data: a\n\ndata: b")
    assert framer.last_event == b"data: a\n\n"
    framer.push(b"c\n\n")
    assert framer.last_event == b"data: bc\n\n"
    framer.push(b"data: [DONE]\n\n")
    framer.push(b"data: cut")
    framer.flush()
    assert framer.last_event == b"data: [DONE]\n\n"


def test_small_chunks_cost_no_more_than_their_number() -> None:
    """A quadratic framer would copy 180 GB here."""
    body = b"data: " + b"x" * (MAX_HELD_BYTES - 20) + b"\n\n"
    framer = EventFramer()
    chunks = (body[start : start + 3] for start in range(0, len(body), 3))
    given = [out for chunk in chunks if (out := framer.push(chunk))]
    assert given == [body]
    assert framer.flush() == b""


def test_memory_is_bounded() -> None:
    framer = EventFramer()
    chunk = b"x" * 65_536
    given = [framer.push(chunk) for _ in range(MAX_HELD_BYTES // len(chunk) * 3)]
    longest_wait = max(
        index - before
        for before, index in zip(
            [-1, *(at for at, out in enumerate(given) if out)],
            [at for at, out in enumerate(given) if out],
            strict=False,
        )
    )
    assert longest_wait <= MAX_HELD_BYTES // len(chunk) + 1
    assert b"".join(given) + framer.flush() == chunk * len(given)


def test_what_was_given_out_is_not_held() -> None:
    """Only the unfinished event counts against the limit, however long the stream."""
    framer = EventFramer()
    event = b"data: " + b"x" * 65_536 + b"\n\n"
    for _ in range(2 * MAX_HELD_BYTES // len(event)):
        assert framer.push(event[:-1]) == b""
        assert framer.push(event[-1:] + b"data") == event
        assert framer.push(b": y\n\n") == b"data: y\n\n"
    assert framer.flush() == b""


@pytest.mark.parametrize(("head", "tail"), [(b"\n", b"\n"), (b"\r\n", b"\r\n"), (b"\r\n\r", b"\n")])
def test_end_across_the_seam_of_an_event_too_long_to_hold(head: bytes, tail: bytes) -> None:
    framer = EventFramer()
    long = b"data: " + b"x" * MAX_HELD_BYTES + head
    assert framer.push(long) == long
    after = framer.push(tail) + framer.push(b"data: b\n\n")
    assert after == tail + b"data: b\n\n"
    if head != b"\r\n\r":
        framer = EventFramer()
        framer.push(long)
        assert framer.push(tail) == tail


@pytest.mark.parametrize("end", ENDS)
def test_split(end: bytes) -> None:
    first, second = b"data: a" + end, b": ping" + end
    assert split_events(first + second) == [first, second]
    assert split_events(first + b"data: b") == [first, b"data: b"]
    assert split_events(b"") == []


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data:  a \n\n", b" a "),
        (b"data: a\r\n\r\n", b"a"),
        (b"data: a\r\r", b"a"),
        (b"event: x\ndata: a\nid: 1\n\n", b"a"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\rdata:b\r\ndata:\n\n", b"a\nb\n"),
        (b"data\n\n", b""),
        (b"data: a\ndata\n\n", b"a\n"),
        (b": data: a\n\n", b""),
        (b"datax: a\n\n", b""),
        (b" data: a\n\n", b""),
        (b"event: data: a\n\n", b""),
        (b"data: a: b\n\n", b"a: b"),
        (b"\ndata: a\n\n", b"a"),
        ("data: 日\n\n".encode(), "日".encode()),
        (b"data: \xff\n\n", b"\xff"),
        (b"data: [DONE]\n\n", b"[DONE]"),
        (b"\n\n", b""),
        (b"", b""),
    ],
)
def test_event_data(event: bytes, data: bytes) -> None:
    assert event_data(event) == data
