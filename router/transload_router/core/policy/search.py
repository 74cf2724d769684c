"""The cheapest pair of two sorted lists, exactly, without looking at all pairs.

The cost of a pair is its prefill's, its decode's and its link's. With every decode's cost raised
by the least its links can take, the sum of two entries is a lower bound of their pair, so both
lists are walked from the cheap end and left as soon as the bound reaches the best pair so far.
Where links are alike that is after a few pairs. Where they are not, or where most pairs do not
work, it could be all of them; a budget that grows with the number of destinations, not of pairs,
ends the search then, with the best that was found.
"""

from collections.abc import Callable, Sequence

# Pairs looked at per destination, at most. Random fleets of 2 x 250 with links differing tenfold
# look at fewer than 2 (tests/property/test_pair_search.py).
PAIRS_PER_DESTINATION = 16

# Lower bound of the cost, and where it stands in the caller's own list.
Entry = tuple[float, int]


def cheapest_pair(
    prefills: Sequence[Entry],
    decodes: Sequence[Entry],
    pair_cost: Callable[[int, int], float | None],
    limit: float,
) -> tuple[int, int, float] | None:
    """Search two lists in ascending order.

    Args:
        prefills: Cost of each, ascending.
        decodes: Cost of each with its least link, ascending.
        pair_cost: The pair's whole cost, never below the sum of its entries; None if it may not
            be formed.
        limit: Only pairs cheaper than this are wanted.

    Returns:
        The two entries' indices and their cost, or None.
    """
    best: tuple[int, int, float] | None = None
    if not prefills or not decodes:
        return None
    budget = PAIRS_PER_DESTINATION * (len(prefills) + len(decodes))
    cheapest_decode = decodes[0][0]
    for prefill_cost, prefill in prefills:
        if prefill_cost + cheapest_decode >= limit:
            break
        for decode_cost, decode in decodes:
            if prefill_cost + decode_cost >= limit:
                break
            budget -= 1
            cost = pair_cost(prefill, decode)
            if cost is not None and cost < limit:
                best, limit = (prefill, decode, cost), cost
            if budget <= 0:
                return best
    return best
