"""One request's way through load, cost and policy: chosen, measured, settled.

Whoever routes calls, in this order, what happens; what does not happen is left out:

    choice = routing.choose(ask, view, now)
    routing.observe_prefill(choice, now)        prefill's answer has come
    routing.observe_sent(choice, now)           decode's request, with the handoff, is sent
    routing.observe_first_token(choice, now)    the first token has come
    routing.observe_end(choice, now, tokens)    the answer is whole
    choice.release(now)                         always, and once is enough

Times are monotonic seconds. Telling the index what was promised is the caller's.
"""

from dataclasses import dataclass, field

import msgspec

from transload_router.core.cost import CostModel
from transload_router.core.load import EngineLoad, Load, Reservation
from transload_router.core.policy.pricing import Weights
from transload_router.core.policy.registry import make_policy
from transload_router.core.policy.types import (
    Ask,
    Chance,
    Decision,
    Destination,
    FleetView,
    Policy,
    Row,
)

# Weight of the newest error in the running means: the last 50 requests. Chosen for reading, no
# decision depends on it.
NEWS = 0.02
# Shorter answers say little of a step: their first tokens come with what else happens then. Chosen,
# not tuned: in a production trace of chats 96 % of answers have as many.
MIN_ANSWER = 8
# However much others' prefills are thought to have taken, this share of a span was steps. A guard
# against an estimate that is off; not tuned.
MIN_OWN_SHARE = 0.2


@dataclass(slots=True)
class _Mark:
    """A load's integrals at one moment."""

    now: float
    decoding_s: float
    context_token_s: float
    prefilled_tokens: int
    prefilled_area: int

    @classmethod
    def of(cls, load: EngineLoad, now: float) -> "_Mark":
        """As it stands."""
        load.count_until(now)
        return cls(
            now,
            load.decoding_s,
            load.context_token_s,
            load.prefilled_tokens,
            load.prefilled_area,
        )


@dataclass(slots=True, eq=False)
class Choice:
    """A decision with what it has reserved.

    Attributes:
        decision: Where the request goes.
        prefill: Share of the prefill destination, None if decode does it all.
        decode: Share of the decode destination.
        chosen_s: When.
        sent_s: When decode's request was sent with a handoff.
        admission_s: How long decode's own queue and first step were expected to take then.
        began: Decode's load when its first token came.
    """

    decision: Decision
    prefill: Reservation | None
    decode: Reservation
    chosen_s: float
    sent_s: float | None = None
    admission_s: float = 0.0
    began: _Mark | None = None

    def release_prefill(self, now: float = 0.0) -> None:
        """The prefill leg is over, however it ended."""
        if self.prefill is not None:
            self.prefill.release(now)

    def release(self, now: float = 0.0) -> None:
        """Both legs are over."""
        self.release_prefill(now)
        self.decode.release(now)


class Accuracy(msgspec.Struct):
    """How well first tokens are predicted.

    Attributes:
        num_measured: First tokens so far.
        predicted_s: Running mean of what was predicted.
        measured_s: Running mean of what was measured.
        error_s: Running mean of the distance.
    """

    num_measured: int = 0
    predicted_s: float = 0.0
    measured_s: float = 0.0
    error_s: float = 0.0

    def note(self, predicted_s: float, measured_s: float) -> None:
        """Take in one first token."""
        self.num_measured += 1
        news = max(NEWS, 1 / self.num_measured)
        self.predicted_s += news * (predicted_s - self.predicted_s)
        self.measured_s += news * (measured_s - self.measured_s)
        self.error_s += news * (abs(measured_s - predicted_s) - self.error_s)


@dataclass(slots=True)
class Routing:
    """Chooses, reserves, and learns from what comes of it.

    Args:
        chance: Breaks ties.
        name: Of the policy.
        weights: Of the policy `cost`.
    """

    chance: Chance
    name: str = "cost"
    weights: Weights | None = None
    load: Load = field(default_factory=Load)
    costs: CostModel = field(default_factory=CostModel)
    accuracy: Accuracy = field(default_factory=Accuracy)
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        self.policy = make_policy(self.name, self.load, self.costs, self.chance, self.weights)

    def choose(self, ask: Ask, view: FleetView, now: float) -> Choice | None:
        """Choose and reserve at once; None if nobody can write the answer."""
        decision = self.policy.choose(ask, view, now)
        if decision is None:
            return None
        terms, num_prompt = decision.predicted, ask.num_prompt_tokens
        num_prefill = 0
        if ask.handoff_from is None:
            num_prefill = terms.num_uncached_tokens
        prefill = None
        if decision.prefill is not None:
            prefill = self._reserve(decision.prefill, num_prompt, 0, num_prefill, now)
            num_prefill = 0
        num_answer = int(self.costs.expected_answer(ask.num_answer_tokens))
        decode = self._reserve(decision.decode, num_prompt, num_answer, num_prefill, now)
        return Choice(decision, prefill, decode, now)

    def explain(self, ask: Ask, view: FleetView, now: float) -> list[Row]:
        """Every candidate with its terms; reserves nothing."""
        return self.policy.explain(ask, view, now)

    def observe_prefill(self, choice: Choice, now: float) -> None:
        """Prefill's answer has come, whole and good."""
        if choice.decision.prefill is not None and choice.prefill is not None:
            self._prefilled(choice.decision.prefill, choice.prefill, now)

    def observe_sent(self, choice: Choice, now: float) -> None:
        """Decode's request is sent, with the handoff."""
        load = choice.decode.load
        if load is None:
            return
        model = self.costs.of(choice.decision.decode.key)
        step_s = model.decode_step_s(load.num_decoding + 1, load.num_context_tokens)
        choice.sent_s, choice.admission_s = now, model.queue_s(load, now) + step_s

    def observe_first_token(self, choice: Choice, now: float) -> None:
        """The first token has come from decode."""
        decision, terms = choice.decision, choice.decision.predicted
        self.accuracy.note(terms.first_token_s, now - choice.chosen_s)
        source, sink = decision.prefill, decision.decode
        if choice.sent_s is not None and source is not None and self._are_known(source, sink):
            seconds = max(0.0, now - choice.sent_s - choice.admission_s)
            self.costs.links.observe(source.key, sink.key, terms.num_moved_tokens, seconds)
        self._prefilled(sink, choice.decode, now)
        load = choice.decode.load
        choice.began = _Mark.of(load, now) if load is not None else None

    def observe_end(self, choice: Choice, now: float, num_tokens: int) -> None:
        """The answer is whole, with so many tokens. Call before `Choice.release`."""
        self.costs.observe_answer(num_tokens)
        began, load, destination = choice.began, choice.decode.load, choice.decision.decode
        if began is None or load is None or now <= began.now or num_tokens < MIN_ANSWER:
            return
        ended = _Mark.of(load, now)
        span_s = now - began.now
        foreign_s = 0.0
        if ended.prefilled_tokens > began.prefilled_tokens:
            foreign_s = self.costs.of(destination.key).prefill_s(
                ended.prefilled_tokens - began.prefilled_tokens,
                ended.prefilled_area - began.prefilled_area,
                EngineLoad(0),
            )
        step_s = max(span_s - foreign_s, MIN_OWN_SHARE * span_s) / (num_tokens - 1)
        self.costs.observe_step(
            destination.key,
            step_s,
            (ended.decoding_s - began.decoding_s) / span_s,
            (ended.context_token_s - began.context_token_s) / span_s,
            now,
        )

    def forget(self, engine_id: str) -> None:
        """A gone engine takes with it whatever is kept of it."""
        self.load.forget(engine_id)
        self.costs.forget(engine_id)
        self.policy.forget(engine_id)

    def queue_s(self, destination: Destination, now: float) -> float:
        """Until what was promised to it is computed."""
        load = self.load.of(destination.engine, destination.rank)
        return self.costs.of(destination.key).queue_s(load, now)

    def _are_known(self, *destinations: Destination) -> bool:
        return all(self.costs.is_known(one.key) for one in destinations)

    def _reserve(
        self,
        destination: Destination,
        num_prompt: int,
        num_answer: int,
        num_prefill: int,
        now: float,
    ) -> Reservation:
        return self.load.reserve(
            destination.engine,
            num_prompt + num_answer,
            destination.rank,
            num_prefill_tokens=num_prefill,
            num_context_tokens=num_prompt,
            now=now,
        )

    def _prefilled(self, destination: Destination, prompt: Reservation, now: float) -> None:
        load = prompt.load
        if load is not None and prompt.is_prefilling:
            self.costs.observe_prefill(destination.key, prompt, load, now)
        prompt.prefilled(now)
