"""The approximate index: what was sent where, in chunks of text."""

from transload_router.core.index.approximate import CHUNK_BYTES, ApproximateIndex, Text
from transload_router.core.index.hits import Hit
from transload_router.core.index.keys import Identity

A, B = ("a", 0), ("b", 1)
BASE = bytes(range(256)) * 4
PER_CHUNK = CHUNK_BYTES // 4


def text(data: bytes, lora: str | None = None, salt: str | None = None) -> Text:
    return Text(Identity("m", lora), data, salt)


def test_a_second_prompt_finds_the_first() -> None:
    index = ApproximateIndex()
    assert index.match(text(BASE)) == {}
    index.predict(A, text(BASE))
    index.predict(B, text(BASE[: 2 * CHUNK_BYTES] + b"x" * CHUNK_BYTES))
    longer = text(BASE + b"?")
    assert index.match(longer) == {
        A: Hit(4 * PER_CHUNK - 1, 4 * PER_CHUNK - 1, False, False),
        B: Hit(2 * PER_CHUNK, 2 * PER_CHUNK, False, False),
    }
    assert index.match(text(b"?" + BASE)) == {}
    assert index.match(text(BASE[: CHUNK_BYTES - 1])) == {}


def test_identities_are_apart() -> None:
    index = ApproximateIndex()
    index.predict(A, text(BASE))
    assert index.match(text(BASE, lora="x")) == {}
    assert index.match(text(BASE, salt="x")) == {}
    index.predict(A, text(BASE, salt="x"))
    assert set(index.match(text(BASE, salt="x"))) == {A}
    assert index.match(text(BASE, lora="x")) == {}


def test_tokens_follow_what_engines_report() -> None:
    index = ApproximateIndex()
    index.predict(A, text(BASE))
    for _ in range(1000):
        index.observe_length(2000, 1000)
    index.observe_length(0, 5)
    assert abs(index.bytes_per_token - 2.0) < 0.01
    assert abs(index.match(text(BASE + BASE))[A].num_tokens - 512) < 5


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    index = ApproximateIndex(max_chunks=8)
    one, two, three = text(BASE), text(b"2" * 1024), text(b"3" * 256)
    index.predict(A, one)
    index.predict(A, two)
    index.predict(A, one)
    index.predict(A, three)
    assert index.num_chunks <= 8
    assert index.match(three) != {}
    assert index.match(one)[A].num_tokens == 255
    # The end of a prompt goes before its start.
    index.predict(B, text(b"4" * 256))
    assert index.num_chunks <= 8
    index.predict(B, text(b"5" * 256))
    assert index.match(one)[A].num_tokens > index.match(two).get(A, Hit(0, 0)).num_tokens


def test_an_engine_is_forgotten() -> None:
    index = ApproximateIndex()
    index.predict(A, text(BASE))
    index.predict(B, text(BASE))
    index.remove_engine("a")
    assert set(index.match(text(BASE))) == {B}
    index.predict(A, text(BASE[:256]))
    assert index.match(text(BASE))[A].num_tokens == PER_CHUNK
    assert index.num_chunks == 5
