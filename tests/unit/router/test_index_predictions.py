"""Claims: each ends once, by events, by time, by its owner, or for want of room."""

import pytest

from support.index_table import whole
from transload_router.core.index import predictions as module
from transload_router.core.index.predictions import Predictions


def test_a_claim_ends_with_its_time() -> None:
    claims = Predictions()
    claims.add(1, [10, 11], 5.0)
    assert whole(claims.table) == {10: 1, 11: 1}
    claims.expire(4.9)
    assert whole(claims.table) == {10: 1, 11: 1}
    claims.expire(5.0)
    assert (whole(claims.table), claims.num_claims, claims.num_keys, claims.claimants) == (
        {},
        0,
        0,
        0,
    )


def test_siblings_share_keys() -> None:
    claims = Predictions()
    claims.add(1, [10, 11, 12], 5.0)
    claims.add(1, [10, 11, 13], 6.0)
    claims.add(2, [10], 6.0)
    assert whole(claims.table) == {10: 3, 11: 1, 12: 1, 13: 1}
    claims.expire(5.5)
    assert whole(claims.table) == {10: 3, 11: 1, 13: 1}
    claims.expire(6.0)
    assert whole(claims.table) == {}


def test_a_shorter_claim_does_not_cut_a_longer_one() -> None:
    claims = Predictions()
    claims.add(1, [10, 11, 12], 9.0)
    claims.add(1, [10, 11], 3.0)
    claims.expire(4.0)
    assert whole(claims.table) == {10: 1, 11: 1, 12: 1}


def test_the_same_prompt_again_lasts_as_long_as_the_latest() -> None:
    claims = Predictions()
    claims.add(1, [10, 11], 5.0)
    claims.add(1, [10, 11], 7.0)
    claims.add(1, [10, 11], 6.0)
    assert claims.num_claims == 1
    claims.expire(6.5)
    assert whole(claims.table) == {10: 1, 11: 1}
    claims.expire(7.0)
    assert whole(claims.table) == {}


def test_a_claim_ends_when_its_last_key_is_told() -> None:
    claims = Predictions()
    claims.add(1, [10, 11], 5.0)
    claims.settle(1, [10])
    claims.settle(2, [10, 11])
    assert whole(claims.table) == {10: 1, 11: 1}
    claims.settle(1, [11])
    assert whole(claims.table) == {}
    claims.expire(9.0)
    assert claims.num_claims == 0


def test_claims_die_with_their_owner() -> None:
    claims = Predictions()
    claims.add(1, [10, 11], 5.0)
    claims.add(2, [10], 5.0)
    claims.forget(1)
    assert (whole(claims.table), claims.claimants) == ({10: 2}, 2)


def test_no_keys_no_claim() -> None:
    claims = Predictions()
    claims.add(1, [], 5.0)
    assert (claims.num_claims, claims.claimants) == (0, 0)


def test_the_soonest_over_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLAIMED_KEYS", 5)
    claims = Predictions()
    claims.add(1, [10, 11], 9.0)
    claims.add(1, [20, 21], 5.0)
    claims.add(1, [30, 31], 7.0)
    assert whole(claims.table) == {10: 1, 11: 1, 30: 1, 31: 1}
    assert claims.num_crowded_out == 1
    claims.add(1, list(range(40, 46)), 20.0)
    assert claims.num_keys == 4


def test_what_ended_does_not_pile_up() -> None:
    claims = Predictions()
    for number in range(10_000):
        claims.add(1, [number], 1e9)
        claims.settle(1, [number])
    assert len(claims._heap) <= 65
