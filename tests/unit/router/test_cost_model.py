"""The fleet's times: unknown destinations are like it, silent ones drift back to it."""

import random

import pytest

from support.destinations import engine
from transload_router.core.cost import CostModel
from transload_router.core.load import EngineLoad, Load

IDLE = EngineLoad(0)


class Bench:
    """Engines of known speed, one prompt at a time."""

    def __init__(self) -> None:
        self.model = CostModel()
        self.load = Load()
        self.now = 100.0
        self.chance = random.Random(5)

    def prefill(self, name: str, factor: float, count: int) -> None:
        """`factor` times 20 ms and 0.05 ms a token, with 10 % noise."""
        one = engine(name)
        for _ in range(count):
            tokens = self.chance.choice((500, 2_000, 8_000))
            leg = self.load.reserve(
                one, tokens, num_prefill_tokens=tokens, num_context_tokens=tokens, now=self.now
            )
            self.now += factor * (0.02 + 5e-5 * tokens) * self.chance.lognormvariate(0, 0.1)
            self.model.observe_prefill((name, 0), leg, self.load.of(one), self.now)
            leg.prefilled(self.now)
            leg.release(self.now)
            self.now += 1.0
            self.model.refresh(self.now)

    def seconds(self, name: str, tokens: int = 4_000) -> float:
        return self.model.of((name, 0)).prefill_s(tokens, tokens * tokens / 2, IDLE)


def test_measured_prefills_are_predicted() -> None:
    bench = Bench()
    bench.prefill("a", 1.0, 60)
    assert bench.seconds("a") == pytest.approx(0.22, rel=0.15)


def test_a_slow_engine_is_noticed_within_ten_prompts() -> None:
    bench = Bench()
    bench.prefill("a", 1.0, 40)
    bench.prefill("b", 1.0, 40)
    before = bench.seconds("b")
    bench.prefill("b", 4.0, 10)
    assert bench.seconds("b") > 2 * before
    assert bench.seconds("a") == pytest.approx(0.22, rel=0.25)


def test_an_unknown_engine_is_like_the_fleet() -> None:
    bench = Bench()
    bench.prefill("a", 3.0, 60)
    assert bench.seconds("new") == pytest.approx(bench.seconds("a"), rel=0.2)


def test_one_that_nobody_asks_drifts_back_to_the_fleet() -> None:
    bench = Bench()
    for _ in range(20):
        bench.prefill("a", 1.0, 2)
        bench.prefill("slow", 5.0, 1)
    slow = bench.seconds("slow")
    for _ in range(60):
        bench.prefill("a", 1.0, 1)
        bench.now += 10.0
        bench.model.refresh(bench.now)
    assert bench.seconds("slow") < slow / 2


def test_steps_are_learned_from_answers() -> None:
    model, chance = CostModel(), random.Random(3)
    for _ in range(100):
        beside, context = chance.uniform(1, 60), chance.uniform(1e3, 2e5)
        step_s = (0.012 + 1e-4 * beside + 1e-7 * context) * chance.lognormvariate(0, 0.1)
        model.observe_step(("a", 0), step_s, beside, context, 1.0)
    assert model.of(("a", 0)).decode_step_s(30, 100_000) == pytest.approx(0.025, rel=0.1)
    assert model.of(("a", 0)).decode_step_s(2, 4_000) == pytest.approx(0.0126, rel=0.15)


def test_answers_are_expected_to_be_usual() -> None:
    model = CostModel()
    for _ in range(400):
        model.observe_answer(50)
    assert model.expected_answer(0) == pytest.approx(50, abs=1)
    assert model.expected_answer(10) == 10
    assert model.expected_answer(100_000) == pytest.approx(100, abs=2)


def test_forgotten_engines_start_anew() -> None:
    bench = Bench()
    bench.prefill("a", 1.0, 40)
    bench.prefill("b", 6.0, 20)
    slow = bench.seconds("b")
    bench.model.forget("b")
    assert bench.seconds("b") < 0.8 * slow
