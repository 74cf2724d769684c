"""The search finds what looking at every pair finds, and looks at few."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from transload_router.core.policy.search import PAIRS_PER_DESTINATION, Entry, cheapest_pair

SECONDS = st.floats(0.0, 10.0)


@given(
    prefills=st.lists(SECONDS, min_size=1, max_size=6),
    decodes=st.lists(SECONDS, min_size=1, max_size=6),
    data=st.data(),
)
@settings(deadline=None)
def test_equal_to_brute_force(
    prefills: list[float], decodes: list[float], data: st.DataObject
) -> None:
    links: list[list[float | None]] = [
        [data.draw(st.one_of(st.none(), SECONDS)) for _ in decodes] for _ in prefills
    ]
    limit = data.draw(st.floats(0.0, 40.0))
    floors = [
        min((one for row in links if (one := row[d]) is not None), default=0.0)
        for d in range(len(decodes))
    ]

    def cost(p: int, d: int) -> float | None:
        link_s = links[p][d]
        return None if link_s is None else prefills[p] + (decodes[d] + link_s)

    pairs = [cost(p, d) for p in range(len(prefills)) for d in range(len(decodes))]
    least = min((one for one in pairs if one is not None and one < limit), default=None)
    sources: list[Entry] = sorted((one, p) for p, one in enumerate(prefills))
    # A hair below, as sums of floats in another order may be above.
    sinks: list[Entry] = sorted((one + floors[d] - 1e-9, d) for d, one in enumerate(decodes))
    found = cheapest_pair(sources, sinks, cost, limit)
    assert (found[2] if found else None) == least
    if found:
        assert cost(found[0], found[1]) == found[2]


@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_large_fleets_with_unlike_links_need_few_pairs(seed: int) -> None:
    """500 destinations, links differing tenfold: less than the budget, so the result is exact."""
    chance = random.Random(seed)
    num, asked = 250, 0
    links = [[0.01 * 10 ** chance.random() for _ in range(num)] for _ in range(num)]
    sources = sorted((chance.random(), p) for p in range(num))
    own = [chance.random() for _ in range(num)]
    sinks = sorted((own[d] + min(row[d] for row in links), d) for d in range(num))
    costs = {p: one for one, p in sources}

    def cost(p: int, d: int) -> float:
        nonlocal asked
        asked += 1
        return costs[p] + (own[d] + links[p][d])

    found = cheapest_pair(sources, sinks, cost, 1e9)
    assert found is not None
    assert asked <= 2 * 2 * num < PAIRS_PER_DESTINATION * 2 * num
    assert found[2] <= min(
        costs[p] + own[d] + links[p][d] for p in range(0, num, 7) for d in range(num)
    )
