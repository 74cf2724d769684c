"""Hashes of blocks and the model that is none."""

from transload_engine.core.request import Ask, Generator, Request

WORDS = range(100, 200)


def request(tokens: list[int], salt: str | None = None) -> Request:
    return Request("r", Ask(tokens, 1, cache_salt=salt), 2, list(tokens))


def answer(tokens: list[int], count: int, choice: int = 0, mean: int = 0) -> list[int]:
    generator = Generator(tokens, choice, WORDS, 9, mean)
    return [generator.next() for _ in range(count)]


def test_a_block_is_known_by_all_tokens_up_to_its_end() -> None:
    one, same, other = request([1, 2, 3, 4]), request([1, 2, 3, 4, 5]), request([0, 2, 3, 4])
    assert one.content(0) == same.content(0) != other.content(0)
    assert one.content(1) == same.content(1) != other.content(1)
    assert one.content(0) != one.content(1)


def test_a_salt_changes_every_block_and_marks_the_first() -> None:
    plain, salted, other = request([1, 2, 3, 4]), request([1, 2, 3, 4], "s"), request([1, 2], "t")
    assert plain.content(0) != salted.content(0) != other.content(0)
    assert plain.content(1) != salted.content(1)
    assert [salted.extra_keys(0), salted.extra_keys(1), plain.extra_keys(0)] == [("s",), None, None]


def test_an_answer_goes_on_where_a_longer_prompt_begins() -> None:
    whole = answer([1, 2, 3], 6)
    assert answer([1, 2, 3, *whole[:2]], 4) == whole[2:]


def test_any_other_token_gives_another_answer() -> None:
    assert len({tuple(answer([1, 2, last], 6)) for last in range(50)}) == 50
    assert answer([1, 2], 6) != answer([1, 2], 6, choice=1)


def test_answers_are_of_the_vocabulary_and_end_by_chance_alone() -> None:
    assert set(answer([1], 500)) <= set(WORDS)
    ends = answer([1], 500, mean=10).count(9)
    assert 25 <= ends <= 85
