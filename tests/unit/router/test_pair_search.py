"""The cheapest pair, without looking at all of them."""

from transload_router.core.policy.search import PAIRS_PER_DESTINATION, cheapest_pair


def test_none_without_either_end_or_below_the_limit() -> None:
    assert cheapest_pair([], [(1.0, 0)], lambda _p, _d: 1.0, 9.0) is None
    assert cheapest_pair([(1.0, 0)], [], lambda _p, _d: 1.0, 9.0) is None
    assert cheapest_pair([(1.0, 0)], [(1.0, 0)], lambda _p, _d: 2.0, 2.0) is None
    assert cheapest_pair([(1.0, 4)], [(1.0, 7)], lambda _p, _d: 2.0, 2.1) == (4, 7, 2.0)


def test_pairs_that_may_not_be_formed_are_passed_over() -> None:
    def cost(prefill: int, decode: int) -> float | None:
        return None if prefill == 0 or decode == 0 else 5.0

    entries = [(1.0, 0), (2.0, 1)]
    assert cheapest_pair(entries, entries, cost, 100.0) == (1, 1, 5.0)


def test_a_dear_link_is_left_for_a_dearer_end() -> None:
    links = {(0, 0): 10.0, (0, 1): 10.0, (1, 0): 10.0, (1, 1): 0.0}
    entries = [(1.0, 0), (2.0, 1)]
    found = cheapest_pair(entries, entries, lambda p, d: p + d + 2.0 + links[p, d], 100.0)
    assert found == (1, 1, 4.0)


def test_alike_links_are_settled_by_the_first_pair() -> None:
    asked = []

    def cost(prefill: int, decode: int) -> float:
        asked.append((prefill, decode))
        return float(prefill + decode)

    entries = [(float(at), at) for at in range(250)]
    assert cheapest_pair(entries, entries, cost, 1e9) == (0, 0, 0.0)
    assert asked == [(0, 0)]


def test_work_is_bounded_where_no_bound_helps() -> None:
    """Links that hide what they cost: every pair could be the best."""
    asked = 0

    def cost(prefill: int, decode: int) -> float:
        nonlocal asked
        asked += 1
        return 1e6 - prefill - decode

    entries = [(0.0, at) for at in range(250)]
    assert cheapest_pair(entries, entries, cost, 1e9) is not None
    assert asked <= PAIRS_PER_DESTINATION * 500


def test_work_is_bounded_where_hardly_any_pair_may_be_formed() -> None:
    asked = 0

    def cost(_prefill: int, _decode: int) -> None:
        nonlocal asked
        asked += 1

    entries = [(0.0, at) for at in range(250)]
    assert cheapest_pair(entries, entries, cost, 1e9) is None
    assert asked == PAIRS_PER_DESTINATION * 500
