"""The index as its callers see it: owners, predictions, figures, the bound."""

import pytest

from support.index_model import MODEL, Asked, check_structure, stored
from transload_router.core.index.hits import Hit
from transload_router.core.index.index import Index, OwnerStats
from transload_router.core.index.owner import MAX_ADAPTERS, MAX_GHOSTS, MAX_POOLS
from transload_router.core.kv_events.events import CPU, BlockHash, Removed, Stored
from transload_router.core.kv_events.messages import SnapshotLoaded

P0, P1, D0 = ("p0", 0), ("p0", 1), ("d0", 0)
TEXT = Asked(tuple(range(65)))
SIBLING = Asked((*range(48), *range(900, 920)))


def index_of(*owners: tuple[str, int]) -> Index:
    index = Index()
    for owner in owners:
        index.add_owner(owner, MODEL, 0)
    return index


def test_nobody_knows_anything() -> None:
    index = Index()
    assert index.match(TEXT.prompt()) == {}
    assert index.stats(P0) is None
    assert index.position(P0) is None
    index.clear(P0)
    index.remove_engine("p0")
    index.predict(P0, TEXT.prompt(), 0.0, 1.0)
    index.set_position(P0, SnapshotLoaded(1, 1.0, True))
    index.expire(0.0)
    assert index.owners() == []
    assert index.num_blocks == 0


def test_prompts_without_tokens_to_spare() -> None:
    index = index_of(P0)
    index.apply(P0, 0, stored(TEXT, 0, 2, 1))
    for num_tokens, expected in ((0, {}), (1, {}), (2, {P0: Hit(1, 1)})):
        asked = TEXT.prefix(num_tokens).prompt()
        index.predict(P0, asked, 0.0, 0.0)
        assert index.match(asked) == expected


def test_added_again_keeps_what_is_known() -> None:
    index = index_of(P0)
    index.apply(P0, 0, stored(TEXT, 0, 4, 16))
    index.add_owner(P0, MODEL, 0)
    assert index.match(TEXT.prompt()) == {P0: Hit(64, 64)}
    for model, generation in ((MODEL, 1), ("other", 1)):
        index.add_owner(P0, model, generation)
        assert index.match(TEXT.prompt()) == {}
        index.apply(P0, 1, stored(TEXT, 0, 4, 16))


def test_an_engine_goes_with_all_its_ranks() -> None:
    index = index_of(P0, P1, D0)
    for owner in (P0, P1, D0):
        index.apply(owner, 0, stored(TEXT, 0, 4, 16))
    index.remove_engine("p0")
    assert index.owners() == [D0]
    assert set(index.match(TEXT.prompt())) == {D0}
    check_structure(index)


def test_a_burst_of_siblings_sees_where_the_first_went() -> None:
    """B128: twenty prompts with one prefix, before any event."""
    index = index_of(P0, D0)
    index.apply(P0, 0, stored(Asked((7,) * 16), 0, 1, 16))
    index.predict(P0, TEXT.prompt(), 10.0, 5.0)
    for number in range(20):
        sibling = Asked((*TEXT.tokens[:48], *[1000 + number] * 20)).prompt()
        assert index.match(sibling) == {P0: Hit(48, 48, is_predicted=True)}
        index.predict(P0, sibling, 10.5, 5.0)
    assert index.match(TEXT.prompt()) == {P0: Hit(64, 64, is_predicted=True)}
    assert index.num_predictions == 21
    index.expire(15.0)
    assert index.num_predictions == 20
    assert index.match(TEXT.prompt()) == {P0: Hit(48, 48, is_predicted=True)}
    index.expire(15.5)
    assert index.match(TEXT.prompt()) == {}
    check_structure(index)


def test_a_prompt_sent_again_is_expected_for_longer() -> None:
    index = index_of(P0)
    for now in (0.0, 1.0, 2.0):
        index.predict(P0, TEXT.prompt(), now, 5.0)
        assert index.num_predictions == 1
        assert index.match(TEXT.prompt()) == {P0: Hit(64, 64, is_predicted=True)}
    index.expire(6.5)
    assert index.match(TEXT.prompt()) == {P0: Hit(64, 64, is_predicted=True)}
    index.expire(7.5)
    assert (index.match(TEXT.prompt()), index.num_predictions) == ({}, 0)
    check_structure(index)


def test_events_take_over_from_predictions() -> None:
    index = index_of(P0)
    index.predict(P0, TEXT.prompt(), 0.0, 5.0)
    index.apply(P0, 0, stored(TEXT, 0, 3, 16))
    assert index.match(TEXT.prompt()) == {P0: Hit(64, 64, is_predicted=True)}
    index.apply(P0, 0, stored(TEXT, 3, 1, 16))
    assert index.match(TEXT.prompt()) == {P0: Hit(64, 64)}
    # Removed at once: the prediction does not come back.
    index.apply(P0, 0, Removed(stored(TEXT, 3, 1, 16).block_hashes))
    assert index.match(TEXT.prompt()) == {P0: Hit(48, 48)}


def test_a_leg_that_is_over_leaves_what_events_told() -> None:
    """What was held before is announced by nobody: only `settle` ends what was expected of it."""
    index = index_of(P0, P1)
    index.apply(P0, 0, stored(TEXT, 0, 4, 16))
    for owner in (P0, P1):
        index.predict(owner, TEXT.prompt(), 0.0, 60.0)
    index.predict(P0, SIBLING.prompt(), 0.0, 60.0)
    index.settle(P0, TEXT.prompt())
    index.apply(P0, 0, Removed(stored(TEXT, 3, 1, 16).block_hashes))
    assert index.match(TEXT.prompt()) == {P0: Hit(48, 48), P1: Hit(64, 64, is_predicted=True)}
    assert index.num_predictions == 2
    index.settle(("gone", 0), TEXT.prompt())
    check_structure(index)


def test_predictions_of_other_ranks_are_apart() -> None:
    index = index_of(P0, P1)
    index.predict(P1, TEXT.prompt(), 0.0, 5.0)
    assert set(index.match(TEXT.prompt())) == {P1}
    index.clear(P1)
    assert index.match(TEXT.prompt()) == {}


def test_predictions_beside_lower_tiers() -> None:
    index = index_of(P0)
    index.apply(P0, 0, stored(TEXT, 0, 1, 16))
    index.apply(P0, 0, stored(TEXT, 1, 3, 16, medium=CPU))
    assert index.match(TEXT.prompt()) == {P0: Hit(16, 64)}
    index.predict(P0, SIBLING.prompt(), 0.0, 5.0)
    assert index.match(TEXT.prompt()) == {P0: Hit(48, 64, is_predicted=True)}


def test_predictions_reach_all_groups() -> None:
    index = index_of(P0)
    for group_idx, window in ((0, None), (1, 20)):
        index.apply(P0, 0, stored(TEXT, 0, 1, 16, group_idx=group_idx, window=window))
    assert index.match(TEXT.prompt()) == {P0: Hit(16, 16)}
    index.predict(P0, TEXT.prompt(), 0.0, 5.0)
    assert index.match(TEXT.prompt()) == {P0: Hit(64, 64, is_predicted=True)}


def test_what_an_engine_reported_as_cached_is_believed_for_a_while() -> None:
    """B158: the index was cleared, the engine reuses blocks and announces nothing."""
    index = index_of(P0)
    index.apply(P0, 0, stored(TEXT, 0, 4, 16))
    index.clear(P0)
    index.predict(P0, TEXT.prompt(), 0.0, 60.0, num_tokens=40)
    assert index.match(TEXT.prompt()) == {P0: Hit(32, 32, is_predicted=True)}


def test_an_unknown_block_size_is_that_of_the_model() -> None:
    index = index_of(P0, D0)
    index.apply(D0, 0, stored(TEXT, 0, 1, 32))
    index.predict(P0, TEXT.prompt(), 0.0, 5.0)
    assert index.match(TEXT.prompt())[P0] == Hit(64, 64, is_predicted=True)
    # The engine's own word counts more, whatever it is.
    index.apply(P0, 0, stored(TEXT, 0, 2, 4))
    assert index.match(TEXT.prompt())[P0] == Hit(8, 8)
    check_structure(index)


def test_an_engine_may_come_back_with_other_blocks() -> None:
    index = index_of(P0)
    index.apply(P0, 0, stored(TEXT, 0, 1, 64))
    index.clear(P0)
    index.apply(P0, 0, stored(TEXT, 0, 2, 16))
    assert index.match(TEXT.prompt()) == {P0: Hit(32, 32)}


def test_figures() -> None:
    index = index_of(P0)
    index.apply(P0, 0, stored(TEXT, 0, 4, 16))
    index.apply(P0, 0, stored(TEXT, 0, 2, 16))
    index.apply(P0, 0, stored(TEXT, 0, 3, 16, medium=CPU))
    index.apply(P0, 0, Removed([*stored(TEXT, 0, 2, 16).block_hashes, 5]))
    index.apply(P0, 0, Removed(stored(TEXT, 3, 1, 16).block_hashes))
    index.apply(P0, 0, Stored([1, 1], None, [0] * 32, 16))
    index.apply(P0, 0, Stored([1], 99, [0] * 16, 16))
    index.apply(P0, 0, Stored([1], None, [], 0, medium=CPU))
    assert index.stats(P0) == OwnerStats(
        num_blocks={"GPU": 3, "CPU": 3},
        num_ghosts=1,
        num_stored=9,
        num_removed=3,
        num_cleared=0,
        num_orphaned=2,
        num_unknown_removed=1,
        num_awaited=0,
        num_refused=1,
        num_dropped=0,
    )
    index.clear(P0)
    stats = index.stats(P0)
    assert stats is not None
    assert (stats.num_blocks, stats.num_cleared, stats.num_ghosts) == ({}, 1, 0)


@pytest.mark.parametrize(
    "event",
    [
        Stored([1, 1], None, [1] * 32, 16),
        Stored([1, 2], 2, [1] * 32, 16),
        Stored([1, 2], None, [1] * 31, 16),
        Stored([1], None, [1] * 32, 16),
        Stored([1], None, [1], 0),
        Stored([1], None, [-1] * 16, 16),
        Stored([1], None, [1 << 32] * 16, 16),
        Stored([1], None, ["x"] * 16, 16),  # type: ignore[list-item]
        Stored([1], None, [1] * 16, 16, extra_keys=[["s"], None]),
        Stored([1], None, [1] * 16, 16, extra_keys=["s"]),
    ],
)
def test_what_contradicts_itself_is_counted_and_changes_nothing(event: Stored) -> None:
    """B147: the rest of the index is as it was."""
    index = index_of(P0)
    index.apply(P0, 0, stored(TEXT, 0, 4, 16))
    index.apply(P0, 0, event)
    stats = index.stats(P0)
    assert stats is not None
    assert (stats.num_refused, stats.num_blocks) == (1, {"GPU": 4})
    assert index.match(TEXT.prompt()) == {P0: Hit(64, 64)}
    check_structure(index)


def test_media_without_end_are_bounded() -> None:
    index = index_of(P0)
    for number in range(200):
        index.apply(P0, 0, stored(TEXT, 0, 1, 16, medium=f"M{number}"))
    stats = index.stats(P0)
    assert stats is not None
    assert (len(stats.num_blocks), stats.num_refused) == (MAX_POOLS, 200 - MAX_POOLS)
    assert len(index._holders.tables) == MAX_POOLS
    check_structure(index)


def test_names_of_gone_blocks_are_bounded() -> None:
    index = index_of(P0)
    for number in range(3 * MAX_GHOSTS):
        index.apply(P0, 0, Stored([number], None, [number], 1))
        index.apply(P0, 0, Removed([number]))
    stats = index.stats(P0)
    assert stats is not None
    assert MAX_GHOSTS <= stats.num_ghosts <= 2 * MAX_GHOSTS
    # A late one is still known, an early one is not.
    index.apply(P0, 0, Stored([3 * MAX_GHOSTS - 1], None, [], 0, medium=CPU))
    index.apply(P0, 0, Stored([0], None, [], 0, medium=CPU))
    stats = index.stats(P0)
    assert stats is not None
    assert (stats.num_blocks["CPU"], stats.num_orphaned) == (1, 1)


def test_what_waits_is_bounded() -> None:
    index = index_of(P0)
    for number in range(3 * MAX_GHOSTS):
        index.apply(P0, 0, Stored([number], None, [], 16))
        index.apply(P0, 0, Stored([-number - 1], 10**9 + number, [1] * 16, 16))
    awaited = index._owners[P0].awaited
    assert len(awaited._young) + len(awaited._old) <= 2 * MAX_GHOSTS
    assert awaited.num_children == 64
    stats = index.stats(P0)
    assert stats is not None
    assert (stats.num_orphaned, stats.num_awaited) == (3 * MAX_GHOSTS, 3 * MAX_GHOSTS)


def test_adapters_without_end_are_bounded() -> None:
    index = index_of(P0)
    for number in range(2 * MAX_ADAPTERS):
        name: BlockHash = number
        index.apply(P0, 0, Stored([name], None, [1], 1, number, f"a{number}"))
        if number % 2:
            index.apply(P0, 0, Removed([name]))
    owner = index._owners[P0]
    assert len(owner.adapter_ids) <= MAX_ADAPTERS
    assert len(owner.roots) <= MAX_ADAPTERS
    check_structure(index)


def test_the_largest_pool_gives_way() -> None:
    index = Index(max_blocks=200)
    for owner in (P0, D0):
        index.add_owner(owner, MODEL, 0)
    few = Asked(tuple(range(5000, 5050)))
    index.apply(D0, 0, stored(few, 0, 50, 1))
    for number in range(40):
        index.apply(P0, 0, stored(Asked(tuple(range(number * 10, number * 10 + 10))), 0, 10, 1))
    assert index.num_blocks <= 200
    assert index.match(few.prompt())[D0].num_tokens == 49
    check_structure(index)


def test_what_was_cleared_makes_room_first() -> None:
    index = Index(max_blocks=100)
    for owner in (P0, D0):
        index.add_owner(owner, MODEL, 0)
    index.apply(P0, 0, stored(Asked(tuple(range(90))), 0, 90, 1))
    index.clear(P0)
    few = Asked(tuple(range(5000, 5050)))
    index.apply(D0, 0, stored(few, 0, 50, 1))
    stats = index.stats(D0)
    assert stats is not None
    assert (stats.num_dropped, stats.num_blocks) == (0, {"GPU": 50})
