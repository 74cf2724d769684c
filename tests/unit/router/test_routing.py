"""The facade: reserved at once, measured, learned from, settled once."""

import random

import pytest

from support.destinations import ask, destination, holding, view
from transload_router.core.load import EngineLoad
from transload_router.core.policy import CostPolicy
from transload_router.core.policy.types import FleetView
from transload_router.core.routing import Accuracy, Choice, Routing


def routing(name: str = "cost") -> Routing:
    return Routing(random.Random(1).random, name)


def live(one: Routing, name: str) -> EngineLoad:
    return one.load.of(destination(name).engine)


def chosen(one: Routing, fleet: FleetView, now: float = 0.0, **wanted: object) -> Choice:
    choice = one.choose(ask(**wanted), fleet, now)  # type: ignore[arg-type]
    assert choice is not None
    return choice


def test_nobody_to_decode_reserves_nothing() -> None:
    one = routing()
    assert one.choose(ask(), view(2, 0), 0.0) is None
    assert one.load.num_requests() == 0


def test_a_split_request_through_its_life() -> None:
    one = routing("round-robin")
    choice = chosen(one, view(1, 1), 1.0, num_prompt_tokens=1_000, match=holding(p0=400))
    prefill, decode = live(one, "p0"), live(one, "d0")
    assert (prefill.num_prefill_tokens, prefill.num_tokens) == (600, 1_000)
    assert (decode.num_prefill_tokens, decode.num_tokens) == (0, 1_100)
    assert (decode.num_requests, decode.num_decoding) == (1, 0)
    one.observe_prefill(choice, 1.5)
    assert (prefill.num_prefilling, prefill.num_prefilled) == (0, 1)
    choice.release_prefill(1.5)
    assert prefill.num_requests == 0
    one.observe_sent(choice, 1.5)
    one.observe_first_token(choice, 1.8)
    assert decode.num_decoding == 1
    one.observe_end(choice, 3.8, 101)
    choice.release(3.8)
    choice.release(3.9)
    assert one.load.num_requests() == 0
    assert one.accuracy.num_measured == 1
    assert one.accuracy.measured_s == pytest.approx(0.8)


def test_a_local_request_prefills_where_it_decodes() -> None:
    one = routing()
    choice = chosen(one, view(1, 1), 1.0, may_split=False)
    assert choice.prefill is None
    assert live(one, "d0").num_prefill_tokens == 4_096
    one.observe_prefill(choice, 1.1)
    assert live(one, "d0").num_prefilling == 1
    one.observe_first_token(choice, 1.4)
    assert (live(one, "d0").num_prefilling, live(one, "d0").num_decoding) == (0, 1)
    choice.release(2.0)


def test_an_heir_computes_nothing() -> None:
    one = routing()
    choice = chosen(one, view(0, 1), handoff_from=("p0", 0))
    assert live(one, "d0").num_prefill_tokens == 0
    choice.release()


def test_links_are_learned_from_first_tokens() -> None:
    one = routing("round-robin")
    now = 0.0
    for _ in range(40):
        choice = chosen(one, view(1, 1), now, num_prompt_tokens=10_000)
        one.observe_prefill(choice, now + 1.0)
        choice.release_prefill(now + 1.0)
        one.observe_sent(choice, now + 1.0)
        one.observe_first_token(choice, now + 1.0 + 2.0)
        choice.release(now + 4.0)
        now += 5.0
    latency, token_s = one.costs.links.of(("p0", 0), ("d0", 0))
    assert latency + 10_000 * token_s == pytest.approx(2.0, rel=0.1)


def test_decode_own_queue_is_no_part_of_a_link() -> None:
    """What the first token waits for on decode is known, and taken off."""
    one, fleet = routing("round-robin"), view(1, 1)
    now = 0.0
    for _ in range(40):
        busy = chosen(one, fleet, now, num_prompt_tokens=20_000, may_split=False)
        choice = chosen(one, fleet, now, num_prompt_tokens=10_000)
        one.observe_prefill(choice, now)
        choice.release_prefill(now)
        waiting_s = one.queue_s(destination("d0"), now)
        assert waiting_s > 0.5
        one.observe_sent(choice, now)
        one.observe_first_token(choice, now + waiting_s + 0.3)
        busy.release(now + 9.0)
        choice.release(now + 9.0)
        now += 10.0
    latency, token_s = one.costs.links.of(("p0", 0), ("d0", 0))
    assert latency + 10_000 * token_s < 0.4


def test_forgetting_reaches_the_policy() -> None:
    gone: list[str] = []

    class Listening(CostPolicy):
        def forget(self, engine_id: str) -> None:
            gone.append(engine_id)

    one = routing()
    one.policy = Listening(one.load, one.costs, random.random)
    one.forget("d0")
    assert gone == ["d0"]


def test_steps_are_learned_without_what_others_prefilled_meanwhile() -> None:
    one = routing()
    fleet = view(0, 1)
    now = 0.0
    for _ in range(60):
        first = chosen(one, fleet, now, num_prompt_tokens=100)
        one.observe_first_token(first, now + 0.1)
        other = chosen(one, fleet, now + 0.2, num_prompt_tokens=20_000)
        busy_s = one.costs.of(("d0", 0)).prefill_s(20_000, 2e8, EngineLoad(0))
        one.observe_first_token(other, now + 0.2 + busy_s)
        # 100 steps of 20 ms, and the other's prefill.
        one.observe_end(first, now + 0.1 + 2.0 + busy_s, 101)
        first.release(now + 2.2 + busy_s)
        other.release(now + 2.2 + busy_s)
        now += 20.0
    model = one.costs.of(("d0", 0))
    assert model.decode_step_s(2, 20_100) == pytest.approx(0.02, rel=0.15)


def test_short_answers_and_replaced_engines_teach_no_steps() -> None:
    one = routing()
    fleet = view(0, 1)
    before = one.costs.of(("d0", 0)).decode_step_s(1, 0)
    short = chosen(one, fleet, 0.0)
    one.observe_first_token(short, 0.5)
    one.observe_end(short, 99.0, 2)
    gone = chosen(one, fleet, 0.0)
    one.observe_first_token(gone, 0.5)
    one.forget("d0")
    one.observe_end(gone, 99.0, 50)
    never = chosen(one, fleet, 0.0)
    one.observe_end(never, 99.0, 50)
    assert one.costs.of(("d0", 0)).decode_step_s(1, 0) == before
    for choice in (short, gone, never):
        choice.release()
    assert one.load.num_requests() == 0


def test_the_choice_that_is_explained_is_made() -> None:
    one, fleet = routing(), view(3, 3)
    wanted = ask(match=holding(d1=4_000))
    (row,) = [row for row in one.explain(wanted, fleet, 0.0) if row.is_chosen]
    assert one.load.num_requests() == 0
    choice = one.choose(wanted, fleet, 0.0)
    assert choice is not None
    assert (row.prefill, row.decode) == (None, choice.decision.decode.key[0])


def test_forgotten_engines_leave_nothing() -> None:
    one = routing()
    choice = chosen(one, view(0, 1))
    one.forget("d0")
    assert one.load.num_requests() == 0
    choice.release()
    assert one.load.num_requests() == 0
    assert one.queue_s(destination("d0"), 0.0) == 0.0


def test_queues_are_told() -> None:
    one = routing()
    chosen(one, view(0, 1), 0.0, num_prompt_tokens=20_000)
    assert one.queue_s(destination("d0"), 0.0) > 1.0


def test_accuracy_is_a_running_mean() -> None:
    accuracy = Accuracy()
    accuracy.note(1.0, 3.0)
    assert (accuracy.predicted_s, accuracy.measured_s, accuracy.error_s) == (1.0, 3.0, 2.0)
    for _ in range(500):
        accuracy.note(2.0, 1.5)
    assert accuracy.num_measured == 501
    assert accuracy.error_s == pytest.approx(0.5, abs=0.01)


def test_what_comes_late_of_a_gone_engine_is_not_kept() -> None:
    one = routing("round-robin")
    choice = chosen(one, view(1, 1), 1.0)
    one.forget("p0")
    one.forget("d0")
    one.observe_prefill(choice, 2.0)
    choice.release_prefill(2.0)
    one.observe_sent(choice, 2.0)
    one.observe_first_token(choice, 3.0)
    one.observe_end(choice, 9.0, 100)
    choice.release(9.0)
    assert list(one.load.items()) == []
    assert not one.costs.is_known(("p0", 0))
    assert not one.costs.is_known(("d0", 0))
