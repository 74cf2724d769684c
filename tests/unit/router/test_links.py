"""Handoffs: per pair, an unknown pair like its ends, an unknown end like the fleet."""

import pytest

from transload_router.core.cost.links import FIRST_GUESS, Links

P0, P1, D0, D1 = ("p0", 0), ("p1", 0), ("d0", 0), ("d1", 0)


def teach(links: Links, prefill: tuple[str, int], decode: tuple[str, int], factor: float) -> None:
    for _ in range(30):
        for tokens in (1_000, 10_000):
            links.observe(prefill, decode, tokens, factor * (0.01 + tokens * 1e-5))


def seconds(links: Links, prefill: tuple[str, int], decode: tuple[str, int]) -> float:
    latency, token_s = links.of(prefill, decode)
    return latency + 10_000 * token_s


def test_before_anything_is_measured() -> None:
    links = Links()
    assert links.of(P0, D0) == FIRST_GUESS
    assert links.floor(D0) == FIRST_GUESS


def test_a_pair_is_learned() -> None:
    links = Links()
    teach(links, P0, D0, 1.0)
    teach(links, P1, D0, 10.0)
    assert seconds(links, P0, D0) == pytest.approx(0.11, rel=0.1)
    assert seconds(links, P1, D0) == pytest.approx(1.1, rel=0.1)


def test_an_unknown_pair_is_like_its_ends() -> None:
    links = Links()
    teach(links, P0, D0, 1.0)
    teach(links, P1, D0, 10.0)
    known, slow = seconds(links, P0, D1), seconds(links, P1, D1)
    assert known < slow
    assert seconds(links, P0, D0) < slow


def test_no_pair_is_below_its_floor() -> None:
    links = Links()
    teach(links, P0, D0, 0.5)
    teach(links, P1, D0, 10.0)
    teach(links, P1, D1, 3.0)
    for decode in (D0, D1, ("d2", 0)):
        latency, token_s = links.floor(decode)
        for prefill in (P0, P1, ("p2", 0)):
            link = links.of(prefill, decode)
            assert latency <= link[0]
            assert token_s <= link[1]


def test_a_gone_engine_is_forgotten() -> None:
    links = Links()
    teach(links, P0, D0, 10.0)
    teach(links, P1, D1, 1.0)
    links.forget("p0")
    links.forget("d0")
    fresh = Links()
    teach(fresh, P1, D1, 1.0)
    assert links.of(P1, D1)[1] == pytest.approx(fresh.of(P1, D1)[1], rel=0.1)
    # What is left of them is the fleet's mean, as for any engine that nobody knows.
    assert links.of(P0, D0) == links.of(("new", 0), ("newer", 0))
