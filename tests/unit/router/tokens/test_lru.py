"""A cache that is bounded by weight."""

from transload_router.core.tokens.lru import BytesLru


def test_the_least_recently_used_goes_first() -> None:
    cache: BytesLru[str, int] = BytesLru(30)
    for key in "abc":
        cache.put(key, 1, 10)
    assert cache.get("a") == 1
    cache.put("d", 1, 10)

    assert cache.get("b") is None
    assert [cache.get(key) for key in "acd"] == [1, 1, 1]
    assert (len(cache), cache.num_bytes) == (3, 30)


def test_an_entry_is_replaced_with_its_weight() -> None:
    cache: BytesLru[str, int] = BytesLru(30)
    cache.put("a", 1, 10)
    cache.put("a", 2, 25)

    assert (cache.get("a"), cache.num_bytes) == (2, 25)
    cache.drop("a")
    cache.drop("a")
    assert (cache.get("a"), cache.num_bytes, len(cache)) == (None, 0, 0)


def test_what_does_not_fit_is_not_kept_and_drives_nothing_out() -> None:
    cache: BytesLru[str, int] = BytesLru(30)
    cache.put("a", 1, 30)
    cache.put("b", 1, 31)

    assert (cache.get("a"), cache.get("b")) == (1, None)
