"""Coefficients: found under noise, never negative, near the prior until told otherwise."""

import random

import pytest

from transload_router.core.cost.regression import Regression, dot

TYPICAL = ((1.0, 512.0, 131e3), (1.0, 4096.0, 8.4e6), (4.0, 32e3, 5.1e8))
PRIOR = (0.01, 1e-4, 3e-9)
TRUTH = (0.02, 4e-5, 1e-9)


def taught(
    truth: tuple[float, ...], count: int, noise: float = 0.1, seed: int = 1
) -> tuple[float, ...]:
    chance = random.Random(seed)
    fit = Regression(TYPICAL, 0.3)
    found: tuple[float, ...] = PRIOR
    for _ in range(count):
        tokens = chance.choice((200, 1_000, 5_000, 20_000))
        features = (1.0, float(tokens), tokens * tokens / 2)
        seconds = dot(truth, features) * chance.lognormvariate(0.0, noise)
        fit.observe(features, seconds, dot(found, features))
        found = fit.fit(PRIOR)
    return found


def seconds(coefficients: tuple[float, ...], tokens: float) -> float:
    return dot(coefficients, (1.0, tokens, tokens * tokens / 2))


def test_without_observations_it_is_the_prior() -> None:
    assert Regression(TYPICAL, 1.0).fit(PRIOR) == pytest.approx(PRIOR, rel=1e-6)


@pytest.mark.parametrize("tokens", [200, 1_000, 5_000, 20_000])
@pytest.mark.parametrize("truth", [TRUTH, (0.1, 1e-4, 0.0), (0.0, 5e-4, 1e-8)])
def test_it_converges_under_noise(truth: tuple[float, ...], tokens: int) -> None:
    assert seconds(taught(truth, 200), tokens) == pytest.approx(seconds(truth, tokens), rel=0.15)


def test_a_few_observations_move_it_most_of_the_way() -> None:
    before = abs(seconds(PRIOR, 5_000) / seconds(TRUTH, 5_000) - 1)
    after = abs(seconds(taught(TRUTH, 8), 5_000) / seconds(TRUTH, 5_000) - 1)
    assert after < before / 3


def test_coefficients_are_never_negative() -> None:
    """A cost that falls with tokens is fitted by a constant, not by a negative slope."""
    fit = Regression(((1.0, 1.0),), 0.01)
    for tokens in range(1, 50):
        fit.observe((1.0, float(tokens)), 1.0 - tokens / 100, 1.0)
    constant, slope = fit.fit((0.5, 0.0))
    assert slope == 0.0
    assert 0.6 < constant < 1.0


def test_all_zero_where_nothing_takes_time() -> None:
    fit = Regression(((1.0, 1.0),), 1.0)
    fit.observe((1.0, 1.0), 0.0, 0.0)
    assert fit.fit((0.0, 0.0)) == (0.0, 0.0)


def test_one_outlier_moves_little_and_a_change_much() -> None:
    def shifted(times: int) -> float:
        fit = Regression(((1.0,),), 0.1)
        for _ in range(50):
            fit.observe((1.0,), 1.0, 1.0)
        for _ in range(times):
            fit.observe((1.0,), 100.0, fit.fit((1.0,))[0])
        return fit.fit((1.0,))[0]

    assert shifted(1) < 1.1
    assert shifted(60) > 30


def test_what_fades_returns_to_the_prior() -> None:
    fit = Regression(((1.0,),), 1.0)
    for _ in range(50):
        fit.observe((1.0,), 3.0, 3.0)
    assert fit.fit((1.0,))[0] > 1.9
    for _ in range(20):
        fit.fade(0.5)
    assert fit.fit((1.0,))[0] == pytest.approx(1.0, abs=1e-3)
    assert fit.num_observed == 50
