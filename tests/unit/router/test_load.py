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
