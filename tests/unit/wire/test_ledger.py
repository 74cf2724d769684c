"""Leases: who holds what until when, and when blocks are given back."""

import pytest

from transload_abi.wire.deadlines import Terms
from transload_abi.wire.ledger import Freed, Ledger
from transload_abi.wire.limits import MAX_READERS
from transload_abi.wire.messages import Table

TABLES = (Table(0, 8), Table(1, 4, ((0, 2),)))
TERMS = Terms(term_s=10.0, max_hold_s=25.0, max_remembered=3)


def ledger(readers: int = 1) -> Ledger:
    """Holds `h` under the lease `l` since 0."""
    made = Ledger(TERMS)
    made.grant("h", "l", TABLES, 100, readers, 0.0)
    return made


def test_who_opens_learns_what_was_granted() -> None:
    made = Ledger(TERMS)
    made.grant("h", "l", TABLES, 100, 2, 0.0, num_encoder_tokens=7)
    held = made.open("h", "l", "r1", 4.0)
    assert not isinstance(held, str)
    assert (held.tables, held.num_tokens, held.num_encoder_tokens) == (TABLES, 100, 7)
    assert (held.readers, held.left, held.left_s) == (2, 2, 6.0)


def test_the_last_reader_frees_once() -> None:
    made = ledger(readers=2)
    assert made.done("h", "l", "r1", 1.0) == 1
    assert made.expire(1.0) == ()
    assert made.done("h", "l", "r2", 2.0) == 0
    assert made.num_held == 0
    assert made.expire(2.0) == (Freed("h", "l", "ended", 2),)
    assert made.expire(99.0) == ()


def test_a_reader_counts_once() -> None:
    made = ledger(readers=2)
    assert made.done("h", "l", "r1", 1.0) == 1
    assert made.done("h", "l", "r1", 1.0) == 1
    assert made.num_held == 1


def test_more_readers_than_it_is_for_are_refused() -> None:
    made = ledger(readers=2)
    made.open("h", "l", "r1", 1.0)
    made.done("h", "l", "r2", 1.0)
    assert made.open("h", "l", "r3", 1.0) == "too_many"
    assert made.done("h", "l", "r3", 1.0) == "ended"
    assert not isinstance(made.open("h", "l", "r1", 1.0), str)


def test_a_reader_that_has_ended_is_told_so_while_others_read() -> None:
    made = ledger(readers=2)
    made.done("h", "l", "r1", 1.0)
    assert made.open("h", "l", "r1", 1.0) == "ended"
    assert made.confirm("h", "l", "r1", 1.0) == "ended"
    assert made.renew("h", "l", "r1", 1.0) == "ended"
    assert made.begin_read("h", "l", "r1", 1.0) == "ended"
    assert made.confirm("h", "l", "r2", 1.0) == 9.0


@pytest.mark.parametrize(("now", "gone"), [(9.999, False), (10.0, True)])
def test_a_lease_is_held_up_to_its_end_and_not_at_it(now: float, gone: bool) -> None:
    made = ledger()
    assert (made.confirm("h", "l", "r", now) == "expired") is gone


def test_what_has_expired_is_given_back_though_nobody_looked_in_time() -> None:
    made = ledger()
    assert made.expire(500.0) == (Freed("h", "l", "expired", 0),)


def test_a_renewed_lease_does_not_hide_others_that_expire() -> None:
    made = ledger()
    made.grant("h2", "l", TABLES, 1, 1, 1.0)
    made.grant("h3", "l", TABLES, 1, 1, 2.0)
    made.renew("h", "l", "r", 9.0)
    assert [each.handoff for each in made.expire(12.0)] == ["h2", "h3"]
    assert [each.handoff for each in made.expire(19.0)] == ["h"]


def test_renewals_reach_to_the_longest_hold() -> None:
    made = ledger()
    assert made.renew("h", "l", "r", 9.0) == 10.0
    assert made.renew("h", "l", "r", 18.0) == 7.0
    assert made.renew("h", "l", "r", 24.0) == 1.0
    assert made.renew("h", "l", "r", 25.0) == "expired"


def test_a_hold_shorter_than_a_term() -> None:
    made = Ledger(Terms(term_s=10.0, max_hold_s=4.0))
    made.grant("h", "l", TABLES, 1, 1, 0.0)
    assert made.next_expiry() == 4.0


def test_forgone_for_all_readers() -> None:
    made = ledger(readers=3)
    made.open("h", "l", "r1", 1.0)
    assert made.forgo("h", "l", 1.0) is None
    assert made.open("h", "l", "r1", 1.0) == "ended"
    assert made.forgo("h", "l", 1.0) == "ended"
    assert made.expire(1.0) == (Freed("h", "l", "forgone", 0),)


def test_gone_is_told_apart() -> None:
    made = ledger()
    made.grant("h2", "l", TABLES, 1, 1, 0.0)
    made.done("h2", "l", "r", 1.0)
    assert made.open("h", "other", "r", 1.0) == "other_lease"
    assert made.open("h9", "l", "r", 1.0) == "unknown"
    assert made.open("h2", "l", "r", 1.0) == "ended"
    assert made.open("h", "l", "r", 10.0) == "expired"


def test_an_old_lease_is_known_by_its_end_though_there_is_a_new_one() -> None:
    made = ledger()
    made.expire(10.0)
    made.grant("h", "l2", TABLES, 1, 1, 10.0)
    assert made.open("h", "l", "r", 10.0) == "expired"
    assert not isinstance(made.open("h", "l2", "r", 10.0), str)


def test_what_has_ended_is_remembered_for_a_while() -> None:
    made = Ledger(TERMS)
    for number in range(5):
        made.grant(f"h{number}", "l", TABLES, 1, 1, 0.0)
        made.done(f"h{number}", "l", "r", 0.0)
    assert made.num_remembered == 3
    assert [made.open(f"h{number}", "l", "r", 0.0) for number in range(5)] == [
        *["unknown"] * 2,
        *["ended"] * 3,
    ]


def test_a_copy_keeps_blocks_beyond_the_lease() -> None:
    made = ledger()
    assert made.begin_read("h", "l", "r", 9.0) is None
    assert made.begin_read("h", "l", "r", 9.5) is None
    assert made.expire(10.0) == ()
    assert made.end_read("h", "l", "r", 11.0) == "expired"
    assert made.expire(11.0) == ()
    assert made.end_read("h", "l", "r", 12.0) == "expired"
    assert made.expire(12.0) == (Freed("h", "l", "expired", 0),)
    assert made.num_copied == 0


def test_a_copy_within_the_lease_is_good() -> None:
    made = ledger()
    made.begin_read("h", "l", "r", 1.0)
    assert made.end_read("h", "l", "r", 2.0) is None
    assert made.expire(2.0) == ()


def test_a_copy_that_overlaps_a_forgo_is_told() -> None:
    made = ledger()
    made.begin_read("h", "l", "r", 1.0)
    made.forgo("h", "l", 2.0)
    assert made.expire(2.0) == ()
    assert made.end_read("h", "l", "r", 3.0) == "ended"
    assert made.expire(3.0) == (Freed("h", "l", "forgone", 0),)


def test_a_copy_that_overlaps_its_readers_end_is_told() -> None:
    made = ledger(readers=2)
    made.begin_read("h", "l", "r1", 1.0)
    made.done("h", "l", "r1", 2.0)
    assert made.end_read("h", "l", "r1", 3.0) == "ended"
    assert made.num_held == 1


def test_a_copy_of_an_old_lease_does_not_hold_the_new_one() -> None:
    made = ledger()
    made.begin_read("h", "l", "r", 1.0)
    made.forgo("h", "l", 2.0)
    made.grant("h", "l2", TABLES, 1, 1, 2.0)
    assert made.done("h", "l2", "r", 3.0) == 0
    assert made.expire(3.0) == (Freed("h", "l2", "ended", 1),)
    assert made.end_read("h", "l", "r", 4.0) == "ended"
    assert made.expire(4.0) == (Freed("h", "l", "forgone", 0),)


def test_nothing_is_read_of_what_is_not_held() -> None:
    made = ledger()
    assert made.begin_read("h", "l", "r", 10.0) == "expired"
    assert made.begin_read("h9", "l", "r", 10.0) == "unknown"
    assert made.num_copied == 0


def test_the_next_expiry_is_never_late() -> None:
    made = Ledger(TERMS)
    assert made.next_expiry() is None
    made.grant("h", "l", TABLES, 1, 1, 0.0)
    made.grant("h2", "l", TABLES, 1, 1, 3.0)
    assert made.next_expiry() == 10.0
    made.done("h", "l", "r", 4.0)
    assert made.next_expiry() == 4.0
    made.expire(4.0)
    assert made.next_expiry() == 13.0
    made.expire(13.0)
    assert made.next_expiry() is None


def test_time_does_not_go_back() -> None:
    made = ledger()
    made.expire(10.0)
    made.grant("h2", "l", TABLES, 1, 1, 3.0)
    assert made.next_expiry() == 20.0


def test_memory_does_not_grow_with_leases_that_end_early() -> None:
    made = Ledger(Terms(term_s=1e6, max_hold_s=1e6, max_remembered=10))
    made.grant("kept", "l", TABLES, 1, 1, 0.0)
    for number in range(2000):
        made.grant(f"h{number}", "l", TABLES, 1, 1, 0.0)
        made.done(f"h{number}", "l", "r", 0.0)
        made.expire(0.0)
    assert len(made._heap) < 100
    assert made.next_expiry() == 1e6


@pytest.mark.parametrize("readers", [0, MAX_READERS + 1])
def test_a_handoff_is_for_somebody(readers: int) -> None:
    with pytest.raises(ValueError, match=f"h: expected 1 to {MAX_READERS} readers, got {readers}"):
        Ledger().grant("h", "l", TABLES, 1, readers, 0.0)


def test_a_handoff_that_is_held_is_not_granted() -> None:
    with pytest.raises(ValueError, match="h is held already"):
        ledger().grant("h", "l2", TABLES, 1, 1, 1.0)


def test_a_lease_names_one_time() -> None:
    made = ledger()
    made.begin_read("h", "l", "r", 1.0)
    made.forgo("h", "l", 1.0)
    with pytest.raises(ValueError, match="h was held under the lease l before"):
        made.grant("h", "l", TABLES, 1, 1, 1.0)
    for number in range(3):
        made.grant(f"h{number}", "l", TABLES, 1, 1, 1.0)
        made.done(f"h{number}", "l", "r", 1.0)
    with pytest.raises(ValueError, match="h was held under the lease l before"):
        made.grant("h", "l", TABLES, 1, 1, 1.0)
