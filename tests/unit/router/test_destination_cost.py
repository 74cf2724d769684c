"""One destination's times: prefill in steps, the queue ahead, spans of batched prompts."""

import pytest

from support.destinations import engine
from transload_router.core.cost.destination import DestinationCost
from transload_router.core.load import EngineLoad, Load, Reservation


def cost(area_s: float = 0.0, context_s: float = 0.0) -> DestinationCost:
    """10 ms a step, 0.1 ms a token; 5 ms a decode step, 1 ms an answer."""
    return DestinationCost(
        pass_s=0.01,
        token_s=1e-4,
        area_s=area_s,
        step_s=0.005,
        sequence_s=0.001,
        context_s=context_s,
        max_batch_tokens=1_000,
    )


def reserve(load: Load, tokens: int, now: float) -> Reservation:
    return load.reserve(
        engine(), tokens, num_prefill_tokens=tokens, num_context_tokens=tokens, now=now
    )


def test_a_prefill_is_steps_tokens_and_area() -> None:
    idle = EngineLoad(0)
    assert cost().prefill_s(1_000, 0, idle) == pytest.approx(0.01 + 0.1)
    assert cost().prefill_s(1_001, 0, idle) == pytest.approx(0.02 + 0.1001)
    assert cost(area_s=1e-9).prefill_s(1_000, 5e5, idle) == pytest.approx(0.11 + 5e-4)


def test_every_step_carries_the_answers_beside_it() -> None:
    busy = EngineLoad(0, num_decoding=3, num_context_tokens=1_000)
    assert cost(context_s=1e-6).prefill_s(2_000, 0, busy) == pytest.approx(
        2 * (0.01 + 0.003 + 0.001) + 0.2
    )


def test_nobody_waits_on_an_idle_destination() -> None:
    assert cost().queue_s(EngineLoad(0), 5.0) == 0.0


def test_small_prompts_share_steps() -> None:
    load = Load()
    for _ in range(10):
        reserve(load, 100, 1.0)
    assert cost().queue_s(load.of(engine()), 1.0) == pytest.approx(0.01 + 0.1)


def test_the_head_has_been_running_since_it_came() -> None:
    load = Load()
    reserve(load, 1_000, 1.0)
    reserve(load, 1_000, 1.05)
    assert cost().queue_s(load.of(engine()), 1.06) == pytest.approx(0.22 - 0.06)


def test_the_next_head_runs_since_the_last_one_ended() -> None:
    load = Load()
    first = reserve(load, 1_000, 1.0)
    reserve(load, 1_000, 1.0)
    first.prefilled(1.5)
    first.release(1.5)
    assert cost().queue_s(load.of(engine()), 1.52) == pytest.approx(0.11 - 0.02)


def test_an_overdue_head_takes_as_long_again_as_it_is_late() -> None:
    load = Load()
    reserve(load, 1_000, 1.0)
    reserve(load, 1_000, 1.0)
    waits = [cost().queue_s(load.of(engine()), now) for now in (1.11, 2.11, 6.11)]
    assert waits == pytest.approx([0.11, 1.11, 5.11])


def test_decode_steps() -> None:
    assert cost(context_s=1e-6).decode_step_s(4, 2_000) == pytest.approx(0.005 + 0.004 + 0.002)


def test_a_lone_prefill_is_learned_from_its_begin_to_its_end() -> None:
    load, model = Load(), cost()
    one = reserve(load, 500, 1.0)
    assert model.note_prefill(one, load.of(engine()), 1.2) == []
    one.prefilled(1.2)
    assert model.take_span(1.3) == []
    (span,) = model.take_span(2.0)
    features, seconds = model.features(span)
    assert features == (1.0, 500.0, 500.0 * 250)
    assert seconds == pytest.approx(0.2)
    assert model.take_span(3.0) == []


def test_a_queued_prefill_is_learned_from_the_end_of_the_one_before() -> None:
    load, model = Load(), cost()
    one, other = reserve(load, 500, 1.0), reserve(load, 700, 1.0)
    model.note_prefill(one, load.of(engine()), 1.2)
    one.prefilled(1.2)
    one.release(1.2)
    (first,) = model.note_prefill(other, load.of(engine()), 1.5)
    other.prefilled(1.5)
    (second,) = model.take_span(9.0)
    assert model.features(first)[1] == pytest.approx(0.2)
    assert model.features(second)[0] == (1.0, 700.0, 700.0 * 350)
    assert model.features(second)[1] == pytest.approx(0.3)


def test_prompts_that_end_together_are_one_observation() -> None:
    load, model = Load(), cost()
    several = [reserve(load, 200, 1.0) for _ in range(6)]
    for index, one in enumerate(several):
        assert model.note_prefill(one, load.of(engine()), 1.15 + index / 1e4) == []
        one.prefilled(1.15 + index / 1e4)
    (span,) = model.take_span(9.0)
    features, seconds = model.features(span)
    assert features == (2.0, 1_200.0, 6 * 200.0 * 100)
    assert seconds == pytest.approx(0.1505)


def test_answers_beside_a_prefill_are_not_its_own_time() -> None:
    load, model = Load(), cost()
    for _ in range(10):
        load.reserve(engine(), 1).prefilled(0.5)
    one = reserve(load, 500, 1.0)
    model.note_prefill(one, load.of(engine()), 1.2)
    (span,) = model.take_span(9.0)
    assert model.features(span)[1] == pytest.approx(0.2 - 0.01)


def test_learning_changes_coefficients_and_version() -> None:
    model = cost()
    before = model.version
    for _ in range(50):
        model.learn_prefill((1.0, 1_000.0, 0.0), 0.4, (0.01, 1e-4, 0.0), 7.0)
        model.learn_step((1.0, 10.0, 0.0), 0.05, (0.005, 0.001, 0.0), 8.0)
    # 32 one by one, then every eighth.
    assert model.version == before + 2 * (32 + 2)
    assert model.heard_s == 8.0
    assert model.prefill_s(1_000, 0, EngineLoad(0)) == pytest.approx(0.4, rel=0.15)
    assert model.decode_step_s(10, 0) == pytest.approx(0.05, rel=0.15)


def test_what_is_far_off_is_learned_at_once() -> None:
    model = cost()
    for _ in range(41):
        model.learn_step((1.0, 10.0, 0.0), 0.05, (0.005, 0.001, 0.0), 8.0)
    before = model.version
    model.learn_step((1.0, 10.0, 0.0), 0.05, (0.005, 0.001, 0.0), 9.0)
    assert model.version == before
    model.learn_step((1.0, 10.0, 0.0), 0.5, (0.005, 0.001, 0.0), 9.0)
    assert model.version == before + 1
