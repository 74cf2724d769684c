"""Until when a reader's session waits, and for what: every wait of it is here."""

from transload_abi.wire.reader_state import ReaderCore, ReaderState, ReadOverdue
from transload_abi.wire.session_events import Idle, Overdue

_NEVER = float("inf")
_REQUESTING = (ReaderState.OPEN, ReaderState.FORGOING)


def deadline(c: ReaderCore) -> float | None:
    """When the first wait is over; None at the end alone."""
    waits = c.settings.deadlines
    if c.state is ReaderState.ENDED:
        return None
    if c.state not in _REQUESTING:
        return c.since + waits.opening_s
    if _is_quiet(c):
        leases = max((each.expires for each in c.opens.values()), default=c.since)
        return max(c.since + waits.idle_s, leases)
    reads = (min(pair) for pair in _read_deadlines(c).values())
    return min((_first_asked(c) + waits.answer_s, *reads))


def overdue(c: ReaderCore) -> list[Overdue | Idle | ReadOverdue]:
    """Which waits are over, as events of the table."""
    waits = c.settings.deadlines
    due = deadline(c)
    if due is None or due > c.now:
        return []
    if c.state not in _REQUESTING:
        return [Overdue(f"no {c.state} within {waits.opening_s:g} s")]
    if _is_quiet(c):
        return [Idle()]
    if _first_asked(c) + waits.answer_s <= c.now:
        return [Overdue(f"no answer for {waits.answer_s:g} s")]
    return [
        ReadOverdue(id_, "overdue", f"not all of a read within {waits.read_s:g} s")
        if ends <= c.now
        else ReadOverdue(id_, "stalled", f"no byte of a read for {waits.stall_s:g} s")
        for id_, (stalls, ends) in _read_deadlines(c).items()
        if min(stalls, ends) <= c.now
    ]


def _first_asked(c: ReaderCore) -> float:
    """When what has waited longest for an answer was asked; never, where nothing has."""
    asked = next(iter(c.pending.values()), None)
    return min(
        _NEVER if asked is None else asked.asked,
        next(iter(c.cancelling.values()), _NEVER),
        next(iter(c.attaching.values()), _NEVER),
    )


def _read_deadlines(c: ReaderCore) -> dict[int, tuple[float, float]]:
    """When each read has stalled, and when it has taken too long."""
    waits = c.settings.deadlines
    return {
        id_: (read.heard + waits.stall_s, read.asked + waits.read_s)
        for id_, read in c.reads.items()
    }


def _is_quiet(c: ReaderCore) -> bool:
    return not (c.pending or c.reads or c.cancelling or c.attaching)
