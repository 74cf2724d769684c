"""Records of texts: found by their beginnings, compared in full, forgotten in time."""

from transload_router.core.tokens.prefixes import Prefixes, Record


def _record(text: bytes) -> Record:
    return Record(text, len(text) - 3, b"\x01\x00\x00\x00" * (len(text) // 4))


def test_the_longest_record_that_a_text_begins_with_is_found() -> None:
    prefixes = Prefixes(1 << 20)
    short, long = _record(b"a" * 5000), _record(b"a" * 9000)
    prefixes.add(short, None)
    prefixes.add(long, None)

    assert prefixes.find(b"a" * 9000 + b"b") is long
    assert prefixes.find(b"a" * 8999) is short
    assert prefixes.find(b"a" * 4999) is None
    assert prefixes.find(b"b" + b"a" * 9000) is None


def test_texts_that_differ_behind_their_last_chunk_are_told_apart() -> None:
    prefixes = Prefixes(1 << 20)
    prefixes.add(_record(b"a" * 5000 + b"b"), None)

    assert prefixes.find(b"a" * 5000 + b"c" * 5000) is None


def test_a_conversation_holds_its_last_two_turns() -> None:
    prefixes = Prefixes(1 << 20)
    turns = [_record(b"a" * length) for length in (5000, 9000, 13000, 17000)]
    parent = None
    for turn in turns:
        assert prefixes.find(turn.text) is parent
        prefixes.add(turn, parent)
        parent = turn

    assert len(prefixes) == 2
    assert prefixes.find(b"a" * 13000) is turns[2]
    assert prefixes.find(b"a" * 12999) is None


def test_turns_within_one_chunk_take_each_others_place() -> None:
    prefixes = Prefixes(1 << 20)
    first, second = _record(b"a" * 5000), _record(b"a" * 5100)
    prefixes.add(first, None)
    prefixes.add(second, first)
    third = _record(b"a" * 9000)
    prefixes.add(third, second)
    prefixes.add(_record(b"a" * 13000), third)

    assert len(prefixes) == 2
    assert prefixes.find(b"a" * 5100) is None


def test_records_weigh_what_they_hold() -> None:
    prefixes = Prefixes(60_000)
    for letter in b"abcdefgh":
        prefixes.add(_record(bytes([letter]) * 5000), None)

    # 600 + 5000 of text + 1250 tokens of 4 bytes and 3 for their keys.
    assert prefixes.num_bytes == 4 * (600 + 5000 + 1250 * 7)
    assert prefixes.find(b"a" * 5000) is None
    assert prefixes.find(b"h" * 5000) is not None
