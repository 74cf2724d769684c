"""Which token is chosen from given logits, and what is said of it."""

import math
from collections import Counter
from typing import Any

import pytest
import torch

from transload_engine.core.runner import Sampling
from transload_engine.model.sampling import Draws, choose

LOGITS = torch.tensor([1.0, 4.0, 3.5, 2.0, -1.0])
PROBABILITIES = LOGITS.softmax(-1)


def token(draw: float = 0.5, prompt: Any = (), answer: Any = (), **how: Any) -> int:
    return choose(LOGITS, Sampling(**how), prompt, answer, draw).token_id


def drawable(**how: Any) -> set[int]:
    """All tokens that come out over evenly spread draws."""
    draws = torch.arange(0, 1, 1 / 512).tolist()
    return {token(draw, temperature=1.0, **how) for draw in draws}


def test_no_temperature_takes_the_likeliest() -> None:
    assert {token(draw) for draw in (0.0, 0.5, 0.999)} == {1}
    assert token(0.999, temperature=1e-6) == 1


def test_draws_are_shared_out_by_probability() -> None:
    counts = Counter(token(number / 4096, temperature=1.0) for number in range(4096))
    for token_id, probability in enumerate(PROBABILITIES.tolist()):
        assert counts[token_id] / 4096 == pytest.approx(probability, abs=1 / 2048)


def test_a_temperature_divides_the_logits() -> None:
    counts = Counter(token(number / 4096, temperature=2.0) for number in range(4096))
    wanted = (LOGITS / 2).softmax(-1)[1].item()
    assert counts[1] / 4096 == pytest.approx(wanted, abs=1 / 2048)


def test_the_outermost_draws_are_tokens_that_can_be_drawn() -> None:
    biases = ((0, -1000.0), (4, -1000.0))
    assert token(0.0, temperature=1.0, logit_bias=biases) == 1
    assert token(math.nextafter(1.0, 0.0), temperature=1.0, logit_bias=biases) == 3


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {1}),
        ({"top_p": 0.6}, {1, 2}),
        ({"top_p": 0.0}, {1}),
        ({"min_p": 0.5}, {1, 2}),
        ({"min_p": 0.1}, {1, 2, 3}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.95}, {1, 2, 3}),
        ({"top_k": 2, "top_p": 0.61}, {1}),
    ],
)
def test_the_unlikely_are_cut_off(how: dict[str, Any], left: set[int]) -> None:
    assert drawable(**how) == left


def test_a_bias_is_added() -> None:
    assert token(logit_bias=((4, 5.5), (1, -0.6))) == 4


def test_stop_tokens_wait_for_the_least_length() -> None:
    stops = frozenset({1, 2})
    assert token(stop_ids=stops, min_tokens=2, answer=[0]) == 3
    assert token(stop_ids=stops, min_tokens=2, answer=[0, 0]) == 1
    assert token(stop_ids=stops, min_tokens=2, answer=[0], logit_bias=((1, 100.0),)) == 3
    assert token(min_tokens=2) == 1


@pytest.mark.parametrize(
    ("how", "chosen"),
    [
        ({"presence_penalty": 0.6, "answer": [1]}, 2),
        ({"presence_penalty": 0.6, "prompt": [1]}, 1),
        ({"presence_penalty": 0.6, "answer": [1, 1, 1, 2]}, 1),
        ({"frequency_penalty": 0.2, "answer": [1, 1, 1]}, 2),
        ({"frequency_penalty": 0.2, "answer": [1, 1]}, 1),
        ({"repetition_penalty": 1.2, "prompt": [1]}, 2),
        ({"repetition_penalty": 1.2, "answer": [1]}, 2),
        ({"repetition_penalty": 1.2, "answer": [1], "prompt": [2]}, 1),
        ({"presence_penalty": 0.6, "frequency_penalty": 0.1, "answer": []}, 1),
    ],
)
def test_what_was_said_is_penalised(how: dict[str, Any], chosen: int) -> None:
    assert token(**how) == chosen


def test_a_repeated_token_below_zero_goes_further_down() -> None:
    logits = torch.tensor([-1.0, -1.1])
    assert choose(logits, Sampling(repetition_penalty=1.2), [0], [], 0.0).token_id == 1


def test_the_raw_logits_are_reported() -> None:
    how = Sampling(temperature=1.0, top_k=1, logit_bias=((3, 9.0),), num_logprobs=2)
    chosen = choose(LOGITS, how, [], [], 0.5)
    assert (chosen.token_id, chosen.rank) == (3, 3)
    assert chosen.logprob == pytest.approx(PROBABILITIES[3].log().item())
    assert [token_id for token_id, _ in chosen.alternatives] == [1, 2]
    assert chosen.alternatives[1][1] == pytest.approx(PROBABILITIES[2].log().item())


def test_no_more_is_reported_than_asked_for() -> None:
    silent = choose(LOGITS, Sampling(), [], [], 0.5)
    assert (silent.logprob, silent.rank, silent.alternatives) == (None, None, ())
    own = choose(LOGITS, Sampling(num_logprobs=0), [], [], 0.5)
    assert (own.rank, own.alternatives) == (1, ())
    assert len(choose(LOGITS, Sampling(num_logprobs=20), [], [], 0.5).alternatives) == 5


def test_the_logits_stay_as_they_are() -> None:
    before = LOGITS.clone()
    token(temperature=1.0, min_p=0.1, top_k=3, top_p=0.9, logit_bias=((0, 1.0),), answer=[1])
    assert torch.equal(LOGITS, before)


def test_seeded_draws_are_even_and_unlike_each_other() -> None:
    draws = Draws()
    found = [draws.next(3, number) for number in range(4000)]
    assert [draws.next(3, number) for number in range(4000)] == found
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.02)
    assert len(Counter(int(draw * 10) for draw in found)) == 10
    assert all(0 <= draw < 1 for draw in found)
    assert draws.next(4, 0) != found[0]
    assert draws.next(31, 1) != draws.next(3, 11)
