"""The truth's cache against one that keeps its blocks in a plain list."""

import random

import pytest

from simulation.cache import BlockCache, match_all


class NaiveCache:
    """Keys in the order of their last use, and who holds them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: list[int] = []
        self.num_held: dict[int, int] = {}
        self.num_plain = 0

    def use(self, keys: list[int], num_plain: int) -> bool:
        """Hold a prompt's blocks, evicting the longest unheld; False if there is no room."""
        new = [key for key in keys if key not in self.keys]
        wanted = set(keys)
        idle = [key for key in self.keys if not self.num_held.get(key) and key not in wanted]
        missing = len(self.keys) + self.num_plain + len(new) + num_plain - self.capacity
        if missing > len(idle):
            return False
        for key in idle[: max(0, missing)]:
            self.keys.remove(key)
        self.keys += new
        for key in keys:
            self.num_held[key] = self.num_held.get(key, 0) + 1
        self.num_plain += num_plain
        return True

    def end(self, keys: list[int], num_plain: int) -> None:
        """Stop holding; what nobody holds is now the latest used, a prefix later than its rest."""
        self.num_plain -= num_plain
        for key in reversed(keys):
            self.num_held[key] -= 1
            if not self.num_held[key]:
                self.keys.remove(key)
                self.keys.append(key)


def use(cache: BlockCache, keys: list[int], num_plain: int) -> bool:
    """The same of the truth, in the order an engine calls it."""
    count = cache.match(keys)
    num_new = len(keys) - count + num_plain
    if not cache.has_room(keys[:count], num_new):
        return False
    cache.hold(keys[:count])
    cache.take(num_new)
    assert cache.name(keys[count:]) == keys[count:]
    return True


@pytest.mark.parametrize("seed", range(8))
def test_holds_and_evicts_what_a_plain_list_would(seed: int) -> None:
    chance = random.Random(seed)
    holders: dict[int, set[int]] = {}
    truth, naive = BlockCache(3, 40, holders), NaiveCache(40)
    running: list[tuple[list[int], int]] = []
    num_refused = 0
    for _ in range(600):
        if running and chance.random() < 0.5:
            keys, num_plain = running.pop(chance.randrange(len(running)))
            truth.give_back(keys, num_plain)
            naive.end(keys, num_plain)
        else:
            family = chance.randrange(8)
            keys = [100 * family + n for n in range(chance.randrange(1, 12))]
            num_plain = chance.randrange(3)
            fits = use(truth, keys, num_plain)
            assert naive.use(keys, num_plain) is fits
            if fits:
                running.append((keys, num_plain))
            num_refused += not fits
        assert {key for key in holders if holders[key] == {3}} == set(naive.keys)
        assert truth.num_keys == len(naive.keys)
    assert num_refused > 0


def test_eviction_takes_what_was_given_back_first() -> None:
    cache = BlockCache(0, 4, {})
    cache.take(4)
    cache.name([1, 2, 3, 4])
    cache.give_back([1, 2], 0)
    cache.give_back([3, 4], 0)

    assert cache.take(3) == [2, 1, 4]
    assert 3 in cache


def test_a_block_computed_twice_is_one_key_and_plain_room() -> None:
    cache = BlockCache(0, 4, {})
    cache.take(2)
    assert cache.name([7]) == [7]
    assert cache.name([7]) == []
    assert (cache.num_keys, cache.num_free) == (1, 2)


def test_matches_all_engines_at_once() -> None:
    holders = {1: {0, 1, 2}, 2: {0, 2}, 3: {0, 1}}

    assert match_all(holders, [1, 2, 3, 4]) == {0: 3, 1: 1, 2: 2}
    assert match_all(holders, [9]) == {}
