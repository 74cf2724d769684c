"""Reservations: released once, bound to a generation, never below zero."""

from transload_router.core.load import Load
from transload_router.core.types import Address, Engine, Role


def engine(name: str = "d0", generation: int = 0) -> Engine:
    return Engine(name, Role.DECODE, Address("h", 1), generation)


def figures(load: Load, one: Engine) -> tuple[int, int]:
    live = load.of(one)
    return live.num_requests, live.num_tokens


def test_reserve_and_release() -> None:
    load = Load()
    first = load.reserve(engine(), 10)
    second = load.reserve(engine(), 5)
    load.reserve(engine("d1"), 1)
    assert figures(load, engine()) == (2, 15)
    assert load.num_requests() == 3
    first.release()
    assert figures(load, engine()) == (1, 5)
    second.release()
    assert figures(load, engine()) == (0, 0)
    assert figures(load, engine("d1")) == (1, 1)


def test_released_once() -> None:
    load = Load()
    kept = load.reserve(engine(), 5)
    twice = load.reserve(engine(), 10)
    for _ in range(3):
        twice.release()
    assert figures(load, engine()) == (1, 5)
    kept.release()


def test_new_generation_starts_at_zero() -> None:
    load = Load()
    old = load.reserve(engine(), 10)
    assert figures(load, engine(generation=1)) == (0, 0)
    new = load.reserve(engine(generation=1), 3)
    old.release()
    assert figures(load, engine(generation=1)) == (1, 3)
    new.release()
    assert figures(load, engine(generation=1)) == (0, 0)


def test_late_leg_of_an_old_generation_does_not_hide_the_new() -> None:
    load = Load()
    new = load.reserve(engine(generation=1), 3)
    late = load.reserve(engine(generation=0), 7)
    assert figures(load, engine(generation=1)) == (1, 3)
    assert figures(load, engine(generation=0)) == (0, 0)
    assert load.num_requests() == 1
    late.release()
    new.release()
    assert figures(load, engine(generation=1)) == (0, 0)


def test_forgotten() -> None:
    load = Load()
    gone = load.reserve(engine(), 10)
    load.forget("d0")
    load.forget("d0")
    assert load.num_requests() == 0
    back = load.reserve(engine(), 4)
    gone.release()
    assert figures(load, engine()) == (1, 4)
    back.release()
    assert load.num_requests() == 0


def test_looking_reserves_nothing() -> None:
    load = Load()
    assert figures(load, engine()) == (0, 0)
    assert load.num_requests() == 0


def test_phases_of_a_leg_that_computes_its_prompt() -> None:
    load = Load()
    live = load.of(engine())
    leg = load.reserve(engine(), 1_100, num_prefill_tokens=600, num_context_tokens=1_000, now=5.0)
    assert (live.num_prefilling, live.num_prefill_tokens, live.num_decoding) == (1, 600, 0)
    # 600 tokens attend to 400 cached ones and to half of themselves.
    assert live.prefill_area == 600 * (400 + 300)
    assert leg.is_prefilling
    leg.prefilled(7.0)
    leg.prefilled(8.0)
    assert [one.is_prefilling for one in (leg,)] == [False]
    assert (live.num_prefilling, live.num_prefill_tokens, live.prefill_area) == (0, 0, 0)
    assert (live.num_decoding, live.num_context_tokens, live.progressed_s) == (1, 1_000, 7.0)
    assert (live.num_prefilled, live.prefilled_tokens) == (1, 600)
    leg.release(9.0)
    assert (live.num_decoding, live.num_context_tokens, live.num_requests) == (0, 0, 0)
    assert not live.queue


def test_a_leg_whose_prompt_is_computed_elsewhere_never_prefills() -> None:
    load = Load()
    live = load.of(engine())
    leg = load.reserve(engine(), 1_100, num_context_tokens=1_000)
    assert (live.num_requests, live.num_prefilling, live.num_decoding) == (1, 0, 0)
    leg.prefilled(1.0)
    assert (live.num_prefilling, live.num_decoding, live.num_prefilled) == (0, 1, 0)
    leg.release()
    leg.prefilled(2.0)
    assert (live.num_requests, live.num_decoding, live.num_context_tokens) == (0, 0, 0)


def test_a_cancelled_prefill_leaves_the_queue_uncomputed() -> None:
    load = Load()
    live = load.of(engine())
    leg = load.reserve(engine(), 10, num_prefill_tokens=10, num_context_tokens=10)
    leg.release(1.0)
    leg.prefilled(2.0)
    assert (live.num_prefilling, live.num_decoding, live.num_prefilled) == (0, 0, 0)
    assert not live.queue


def test_integrals_are_means_times_time() -> None:
    load = Load()
    live = load.of(engine())
    first = load.reserve(engine(), 10, num_context_tokens=100)
    second = load.reserve(engine(), 10, num_context_tokens=50)
    first.prefilled(10.0)
    second.prefilled(12.0)
    first.release(15.0)
    live.count_until(16.0)
    live.count_until(11.0)
    assert live.decoding_s == 2 * 1 + 3 * 2 + 1 * 1
    assert live.context_token_s == 2 * 100 + 3 * 150 + 1 * 50


def test_ranks_are_destinations_of_their_own() -> None:
    load = Load()
    load.reserve(engine(), 10, rank=0)
    load.reserve(engine(), 5, rank=1)
    assert (load.of(engine(), 0).num_tokens, load.of(engine(), 1).num_tokens) == (10, 5)
    assert load.of_engine(engine()) == (2, 15)
    assert sorted(key for key, _load in load.items()) == [("d0", 0), ("d0", 1)]


def test_a_new_generation_takes_all_ranks_with_it() -> None:
    load = Load()
    load.reserve(engine(), 10, rank=0)
    load.reserve(engine(), 5, rank=1)
    load.of(engine(generation=1), 0)
    assert load.of_engine(engine()) == (0, 0)
    assert load.num_requests() == 0
    # A leg that was chosen before the engine was replaced changes nothing that is seen.
    load.reserve(engine(generation=0), 7, rank=1)
    assert load.of_engine(engine(generation=1)) == (0, 0)
    assert load.num_requests() == 0


def test_versions_tell_every_change_and_retirement() -> None:
    load = Load()
    live = load.of(engine())
    seen = [live.version]
    leg = load.reserve(engine(), 1, num_prefill_tokens=1, num_context_tokens=1)
    seen.append(live.version)
    leg.prefilled()
    seen.append(live.version)
    leg.release()
    seen.append(live.version)
    assert len(set(seen)) == 4
    assert min(seen) >= 0
    late = load.reserve(engine(), 1)
    load.forget("d0")
    late.release()
    assert live.version < 0
