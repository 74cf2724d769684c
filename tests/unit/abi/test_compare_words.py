"""Messages say enough and carry no more of a stranger's text than they may."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.abi_placements import PLACEMENTS, Shape
from transload_abi.compare import compare
from transload_abi.compare_words import (
    SHORT_WORDS,
    heads_words,
    layers_words,
    numbers_words,
    short,
    tokens_words,
)
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Model, Param, Rope, TokenSlice

PLAIN = PLACEMENTS["LBHNC"](Shape(layers=1, blocks=2, heads=1, tokens=1, size=8))
LONG = 512


def judged(a: Model, b: Model) -> tuple[str, str]:
    """Path and reason."""
    (finding,) = compare(replace(PLAIN, model=a), replace(PLAIN, model=b)).findings
    assert finding.verdict == "refused"
    return finding.path, finding.reason


def rotated(name: str, value: Param) -> Model:
    return replace(PLAIN.model, rope=Rope("applied", {name: value}))


def unweighed(**fields: str) -> Model:
    return replace(PLAIN.model, weights="", **fields)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (unweighed(name="n" * LONG), unweighed(name="o" * LONG)),
        (
            unweighed(name="n" * LONG, revision="r" * LONG),
            unweighed(name="n" * LONG, revision="s" * LONG),
        ),
        (unweighed(name="n" * LONG), unweighed(name="n" * LONG)),
        (
            replace(PLAIN.model, name="n" * LONG),
            replace(PLAIN.model, weights="sha256:" + "1" * 64, name="n" * LONG),
        ),
        (replace(PLAIN.model, adapter="a" * LONG), replace(PLAIN.model, adapter="b" * LONG)),
        (rotated("p" * LONG, "v" * LONG), rotated("p" * LONG, "w" * LONG)),
        (rotated("p", ["v" * LONG]), rotated("p", ["w" * LONG])),
        (rotated("p", ["v" * LONG]), rotated("p", "w")),
        (rotated("p", 1), rotated("p", [2] * 8192)),
        (
            replace(PLAIN.model, kv_share=tuple((n, 0) for n in range(1, 64))),
            replace(PLAIN.model, kv_share=tuple((n, 1) for n in range(2, 64))),
        ),
    ],
)
def test_what_a_stranger_wrote_is_cut(a: Model, b: Model) -> None:
    path, reason = judged(a, b)
    assert len(path) <= MAX_QUOTED_CHARS + len("model.rope.params.")
    assert len(reason) <= 4 * MAX_QUOTED_CHARS + 100
    for letter in "noprsabvw":
        assert letter * (MAX_QUOTED_CHARS + 1) not in path + reason


def test_of_long_lists_the_first_item_that_differs_is_told() -> None:
    ours: list[int | str] = [7] * 8192
    theirs = ours.copy()
    theirs[5000] = 8
    _, reason = judged(rotated("f", ours), rotated("f", theirs))
    assert reason == (
        "rotary embedding: the source's f is 7 at index 5000, the destination's 8 at index 5000"
    )
    _, reason = judged(rotated("f", ours), rotated("f", ours[:100]))
    assert reason.endswith("f is 7 at index 100, the destination's not given at index 100")


def test_short_texts_stay_and_long_ones_end_in_dots() -> None:
    assert short("x" * MAX_QUOTED_CHARS) == "x" * MAX_QUOTED_CHARS
    assert short("x" * (MAX_QUOTED_CHARS + 1)) == "x" * (MAX_QUOTED_CHARS - 3) + "..."


def test_of_many_runs_the_first_are_told() -> None:
    assert numbers_words(tuple(range(0, 32, 2))).endswith(", 28, 30")
    assert numbers_words(tuple(range(0, 4096, 2))).endswith(", 28, 30 and 2032 more")
    assert heads_words((0, 1 << 16, 1 << 16)) == "heads 0-65535 of 65536"
    assert heads_words((3, 4, 8)) == "heads 3 of 8"


def test_ids_of_groups_are_cut_in_what_is_absent() -> None:
    (group,) = PLAIN.groups
    dst: Descriptor = replace(PLAIN, groups=(replace(group, id="i" * LONG, layers=(0, 1)),))
    (sentence,) = compare(PLAIN, dst).absent
    assert len(sentence) <= MAX_QUOTED_CHARS + 60


def test_every_role_has_a_word_of_its_own() -> None:
    assert set(SHORT_WORDS) == set(ROLES)
    assert len(set(SHORT_WORDS.values())) == len(ROLES)


def test_slices_of_tokens_and_single_layers_read_as_sentences() -> None:
    assert tokens_words(TokenSlice(0, 2, 4)) == "run 0 of every 2 runs of 4 tokens"
    assert tokens_words(TokenSlice(1, 2, 1)) == "token 1 of every 2"
    assert tokens_words(TokenSlice(0, 1, 1)) == "all"
    assert layers_words((3,)) == "layer 3"
    assert layers_words((0, 1, 7)) == "layers 0-1, 7"
