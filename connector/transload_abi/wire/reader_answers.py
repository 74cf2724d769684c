"""Guards and actions of the reader's table for answers and for data."""

from collections.abc import Callable

from transload_abi.wire import messages
from transload_abi.wire.reader_events import (
    Data,
    LeaseGone,
    Located,
    Opened,
    ReadComplete,
    RequestFailed,
    ShareEnded,
    StillHeld,
)
from transload_abi.wire.reader_state import (
    DataBegun,
    DataCame,
    Opening,
    ReaderCore,
    ReadOverdue,
)
from transload_abi.wire.spans import MAX_SPANS

_LEASE_KINDS = (messages.Confirm, messages.Renew)
_END_KINDS = (messages.Done, messages.Release, messages.Forgo)


def _id(e: object) -> int:
    assert isinstance(
        e,
        messages.Lease
        | messages.ReadEnd
        | messages.Cancelled
        | messages.Mapped
        | messages.Confirmed
        | messages.Ended
        | messages.Expired
        | messages.Error,
    )
    return e.id


# Guards of answers.


def answers_open(c: ReaderCore, e: object) -> bool:
    """Such an answer is waited for."""
    return _answers(c, e, (messages.Open,))


def answers_lease(c: ReaderCore, e: object) -> bool:
    """Such an answer is waited for."""
    return _answers(c, e, _LEASE_KINDS)


def answers_map(c: ReaderCore, e: object) -> bool:
    """Such an answer is waited for, with so many blocks."""
    assert isinstance(e, messages.Mapped)
    num_blocks = sum(count for _, count in e.blocks)
    return _answers(c, e, (messages.Map,)) and c.pending[e.id].num_blocks == num_blocks


def answers_end(c: ReaderCore, e: object) -> bool:
    """Such an answer is waited for."""
    return _answers(c, e, _END_KINDS)


def _answers(c: ReaderCore, e: object, kinds: tuple[type[messages.Message], ...]) -> bool:
    asked = c.pending.get(_id(e))
    return asked is not None and asked.kind in kinds


def answers_any(c: ReaderCore, e: object) -> bool:
    """An answer is waited for."""
    return _id(e) in c.pending


def ends_read(c: ReaderCore, e: object) -> bool:
    """The read is under way, and the holder has not ended it yet."""
    read = c.reads.get(_id(e))
    return read is not None and not read.has_end


def ends_full_read(c: ReaderCore, e: object) -> bool:
    """And all its bytes have come."""
    return ends_read(c, e) and _has_right_size(c, e) and c.reads[_id(e)].is_full


def ends_read_before_its_data(c: ReaderCore, e: object) -> bool:
    """And its bytes may still come, on a data stream."""
    return ends_read(c, e) and _has_right_size(c, e) and c.reads[_id(e)].stream != 0


def _has_right_size(c: ReaderCore, e: object) -> bool:
    assert isinstance(e, messages.ReadEnd)
    return e.num_bytes == c.reads[e.id].num_bytes


def ends_cancelled(c: ReaderCore, e: object) -> bool:
    """The read was given up, and this is how it ended for the holder."""
    return _id(e) in c.cancelling


def is_of_session(_c: ReaderCore, e: object) -> bool:
    """It answers no request."""
    return _id(e) == 0


# Actions of answers.


def take_lease(c: ReaderCore, e: object) -> None:
    """The handoff is open."""
    assert isinstance(e, messages.Lease)
    asked = c.pending.pop(e.id)
    expires = asked.asked + e.expires_ms / 1000
    c.opens[asked.handoff] = Opening(asked.lease, expires, is_answered=True)
    c.events.append(Opened(e.id, asked.handoff, e, expires))


def take_confirmed(c: ReaderCore, e: object) -> None:
    """The lease is held."""
    assert isinstance(e, messages.Confirmed)
    asked = c.pending.pop(e.id)
    expires = asked.asked + e.expires_ms / 1000
    opening = c.opens.get(asked.handoff)
    if opening is not None and opening.lease == asked.lease:
        opening.expires = max(opening.expires, expires)
    c.events.append(StillHeld(e.id, asked.handoff, expires))


def take_mapped(c: ReaderCore, e: object) -> None:
    """The owner learns where the blocks are."""
    assert isinstance(e, messages.Mapped)
    asked = c.pending.pop(e.id)
    c.events.append(Located(e.id, asked.handoff, e))


def take_ended(c: ReaderCore, e: object) -> None:
    """The handoff is ended for this reader."""
    assert isinstance(e, messages.Ended)
    asked = c.pending.pop(e.id)
    c.events.append(ShareEnded(e.id, asked.handoff, e.left))


def take_gone(c: ReaderCore, e: object) -> None:
    """The lease is not held."""
    assert isinstance(e, messages.Expired)
    asked = c.pending.pop(e.id)
    c.close(asked.handoff, asked.lease)
    c.events.append(LeaseGone(e.id, asked.handoff, e.why))


def take_refusal(c: ReaderCore, e: object) -> None:
    """The request cannot be served."""
    assert isinstance(e, messages.Error)
    asked = c.pending.pop(e.id)
    if asked.kind is messages.Open:
        c.close(asked.handoff, asked.lease)
    c.events.append(RequestFailed(e.id, asked.handoff, e.code, e.reason))


def complete_read(c: ReaderCore, e: object) -> None:
    """Its bytes are the holder's, of a lease that was held."""
    id_ = e.read if isinstance(e, DataCame) else _id(e)
    del c.reads[id_]
    c.events.append(ReadComplete(id_))


def note_end(c: ReaderCore, e: object) -> None:
    """The rest of its data is still on another stream."""
    c.reads[_id(e)].has_end = True


def fail_short_read(c: ReaderCore, e: object) -> None:
    """The holder ended it too early, or takes it for another size."""
    assert isinstance(e, messages.ReadEnd)
    read = c.reads[e.id]
    said = f"{c.peer} ended a read of {read.num_bytes} bytes"
    c.end_read(e.id, "bad_data", f"{said} after {read.num_come}, and says {e.num_bytes}")


def fail_expired_read(c: ReaderCore, e: object) -> None:
    """The lease was not held to the end."""
    assert isinstance(e, messages.Expired)
    read = c.reads[e.id]
    c.close(read.handoff, read.lease)
    c.end_read(e.id, "expired", f"{c.peer} does not hold the lease: {e.why}")


def fail_refused_read(c: ReaderCore, e: object) -> None:
    """The holder cannot serve it."""
    assert isinstance(e, messages.Error)
    c.end_read(e.id, "refused", f"{c.peer} says {e.code}: {e.reason}")


def forget_cancelled(c: ReaderCore, e: object) -> None:
    """Its outcome was told long ago."""
    del c.cancelling[_id(e)]


# Guards of data.


def was_never_read(c: ReaderCore, e: object) -> bool:
    """No read has or had this id."""
    assert isinstance(e, DataBegun)
    return e.begin.read > c.last_id or e.begin.read in c.pending


def is_of_ended_read(c: ReaderCore, e: object) -> bool:
    """The read has its outcome; the holder did not know it."""
    if isinstance(e, DataBegun):
        return e.begin.read not in c.reads
    assert isinstance(e, DataCame)
    return e.read not in c.reads


def is_misplaced(c: ReaderCore, e: object) -> bool:
    """It came on another stream than was asked for, or without the checksum."""
    assert isinstance(e, DataBegun)
    read = c.reads[e.begin.read]
    return read.stream != e.stream or (read.checksums and e.begin.checksum is None)


def is_beyond(c: ReaderCore, e: object) -> bool:
    """The read has no such bytes."""
    assert isinstance(e, DataBegun)
    return e.begin.offset + e.begin.num_bytes > c.reads[e.begin.read].num_bytes


def is_twice(c: ReaderCore, e: object) -> bool:
    """Some of these bytes came before."""
    assert isinstance(e, DataBegun)
    first = e.begin.offset
    return c.reads[e.begin.read].begun.overlaps(first, first + e.begin.num_bytes)


def is_scattered(c: ReaderCore, e: object) -> bool:
    """It would take too much memory to know what has come."""
    assert isinstance(e, DataBegun)
    first = e.begin.offset
    return c.reads[e.begin.read].begun.len_with(first, first + e.begin.num_bytes) > MAX_SPANS


def is_spoiled(_c: ReaderCore, e: object) -> bool:
    """The frame's checksum is another."""
    assert isinstance(e, DataCame)
    return e.is_spoiled


def is_last_of_ended(c: ReaderCore, e: object) -> bool:
    """The holder has ended the read, and these bytes are the last that lacked."""
    assert isinstance(e, DataCame)
    read = c.reads[e.read]
    return read.has_end and read.num_come + e.num_bytes == read.num_bytes


# Actions of data.


def begin_data(c: ReaderCore, e: object) -> None:
    """Nothing of this range may come again."""
    assert isinstance(e, DataBegun)
    first = e.begin.offset
    c.reads[e.begin.read].begun.add(first, first + e.begin.num_bytes)


def fail_data(what: str) -> Callable[[ReaderCore, object], None]:
    """An action that fails the read for what is wrong with a frame of it."""

    def action(c: ReaderCore, e: object) -> None:
        assert isinstance(e, DataBegun)
        begin = e.begin
        said = f"{c.peer} sent bytes {begin.offset} to {begin.offset + begin.num_bytes}"
        c.fail_read(begin.read, "bad_data", f"{said} on stream {e.stream}: {what}")

    return action


def fail_spoiled(c: ReaderCore, e: object) -> None:
    """What came is not what was sent."""
    assert isinstance(e, DataCame)
    c.fail_read(e.read, "bad_data", f"{c.peer} sent a frame with a wrong checksum")


def take_data(c: ReaderCore, e: object) -> None:
    """The owner gets what it does not have yet."""
    assert isinstance(e, DataCame)
    read = c.reads[e.read]
    read.num_come += e.num_bytes
    read.heard = c.now
    if e.data is not None:
        c.events.append(Data(e.read, e.offset, e.data))


def fail_overdue(c: ReaderCore, e: object) -> None:
    """Wait no longer."""
    assert isinstance(e, ReadOverdue)
    c.fail_read(e.read, e.why, f"{c.peer}: {e.reason}")
