"""What the router has learned of times: per destination, per pair, per fleet."""

from transload_router.core.cost.destination import (
    PRIOR_STRENGTH,
    TYPICAL_PREFILLS,
    TYPICAL_STEPS,
    DestinationCost,
)
from transload_router.core.cost.links import Links
from transload_router.core.cost.regression import Regression, Vector, dot
from transload_router.core.load import EngineLoad, Reservation
from transload_router.core.types import DestinationKey

# Before anything is measured, the order of an 8B model in 16 bits on one data-centre GPU: 10,000
# prompt tokens a second, attention as costly as the rest at 30,000 tokens of context; 8 ms a step
# for the weights. A handful of requests replaces them.
FIRST_PREFILL: Vector = (0.01, 1e-4, 3e-9)
FIRST_STEP: Vector = (0.008, 5e-5, 4e-8)
# How long a destination that nobody heard of keeps half of what was learned of it.
HALF_LIFE_S = 30.0
# How often the fleet's means are taken anew.
REFRESH_S = 1.0
# Weight of the newest observation in running means.
NEWS = 0.02


class CostModel:
    """Times of all destinations and pairs; learns from what is told, never asks.

    Attributes:
        links: Of pairs.
        num_answer_tokens: Running mean of answers' lengths.
    """

    def __init__(self) -> None:
        self._models: dict[DestinationKey, DestinationCost] = {}
        self._prefills = Regression(TYPICAL_PREFILLS, PRIOR_STRENGTH)
        self._steps = Regression(TYPICAL_STEPS, PRIOR_STRENGTH)
        self._prefill_prior = FIRST_PREFILL
        self._step_prior = FIRST_STEP
        self._refreshed_s: float | None = None
        self.links = Links()
        self.num_answer_tokens = 256.0

    def of(self, key: DestinationKey) -> DestinationCost:
        """A destination's times; one that nobody knows yet is like the fleet."""
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = DestinationCost()
            model.refit(self._prefill_prior, self._step_prior)
        return model

    def is_known(self, key: DestinationKey) -> bool:
        """Whether anything is kept of a destination; what comes of gone ones teaches nothing."""
        return key in self._models

    def observe_prefill(
        self, key: DestinationKey, prompt: Reservation, load: EngineLoad, now: float
    ) -> None:
        """A prompt was computed; call before the reservation hears of it."""
        model = self.of(key)
        for span in model.note_prefill(prompt, load, now):
            self._learn_prefill(model, *model.features(span), now)

    def observe_step(
        self,
        key: DestinationKey,
        step_s: float,
        num_sequences: float,
        num_context_tokens: float,
        now: float,
    ) -> None:
        """Answers took so long a token, with so many beside each other."""
        features = (1.0, num_sequences, num_context_tokens)
        self._steps.observe(features, step_s, dot(self._step_prior, features))
        self.of(key).learn_step(features, step_s, self._step_prior, now)

    def observe_answer(self, num_tokens: int) -> None:
        """An answer was so long."""
        self.num_answer_tokens += NEWS * (num_tokens - self.num_answer_tokens)

    def expected_answer(self, limit: int) -> float:
        """Tokens of an answer that its client limits to `limit`, or does not (0).

        Limits are mostly far above what is written, so one counts for no more than twice the mean.
        """
        usual = self.num_answer_tokens
        return min(float(limit), 2 * usual) if limit else usual

    def refresh(self, now: float) -> None:
        """Take the fleet's means anew once a while; cheap to call often."""
        if self._refreshed_s is None:
            self._refreshed_s = now
        elapsed = now - self._refreshed_s
        if elapsed < REFRESH_S:
            return
        since_s, self._refreshed_s = self._refreshed_s, now
        for model in self._models.values():
            for span in model.take_span(now):
                self._learn_prefill(model, *model.features(span), span.end_s)
        self._prefill_prior = self._prefills.fit(FIRST_PREFILL)
        self._step_prior = self._steps.fit(FIRST_STEP)
        share = 0.5 ** (elapsed / HALF_LIFE_S)
        for model in self._models.values():
            if model.heard_s <= since_s:
                model.prefills.fade(share)
                model.steps.fade(share)
            model.refit(self._prefill_prior, self._step_prior)

    def forget(self, engine_id: str) -> None:
        """Drop whatever was learned of an engine."""
        for key in [key for key in self._models if key[0] == engine_id]:
            del self._models[key]
        self.links.forget(engine_id)

    def _learn_prefill(
        self, model: DestinationCost, features: Vector, seconds: float, now: float
    ) -> None:
        self._prefills.observe(features, seconds, dot(self._prefill_prior, features))
        model.learn_prefill(features, seconds, self._prefill_prior, now)
