"""Guards and actions of the holder's table for what an open session is asked."""

from transload_abi.wire import messages
from transload_abi.wire.errors import BadRead, OutOfTurn, TooMany, Unsendable, WireError
from transload_abi.wire.holder_opening import break_off
from transload_abi.wire.holder_state import Claim, HolderCore, Serve, Serving
from transload_abi.wire.limits import MAX_OPEN, MAX_READS
from transload_abi.wire.session_events import StreamLost
from transload_abi.wire.sizes import check_blocks

AboutOpen = (
    messages.Read
    | messages.Map
    | messages.Confirm
    | messages.Renew
    | messages.Done
    | messages.Release
)


# Guards.


def is_open_for_another(c: HolderCore, e: object) -> bool:
    """Later messages name the handoff alone: one reader of it per session."""
    assert isinstance(e, messages.Open)
    claim = c.opens.get(e.handoff)
    return claim is not None and claim.lease == e.lease and claim.reader != e.reader


def has_max_open(c: HolderCore, e: object) -> bool:
    """The session has as many handoffs open as it may."""
    assert isinstance(e, messages.Open)
    return e.handoff not in c.opens and len(c.opens) >= MAX_OPEN


def is_not_open(c: HolderCore, e: object) -> bool:
    """It never was, or is no more."""
    assert isinstance(e, AboutOpen)
    return e.handoff not in c.opens


def lacks_shm(c: HolderCore, _e: object) -> bool:
    """The session is without the feature."""
    return not c.has_shm


def has_max_reads(c: HolderCore, _e: object) -> bool:
    """As many reads have not ended as may be."""
    return len(c.reads) >= MAX_READS


def lacks_stream(c: HolderCore, e: object) -> bool:
    """The read's data are to come on a stream that is not attached."""
    assert isinstance(e, messages.Read)
    return e.stream != 0 and e.stream not in c.streams


def was_never_asked(c: HolderCore, e: object) -> bool:
    """No read can have this id."""
    assert isinstance(e, messages.Cancel)
    return e.id > c.last_id


def is_copying(c: HolderCore, e: object) -> bool:
    """A frame of the read is under way."""
    assert isinstance(e, messages.Cancel)
    read = c.reads.get(e.id)
    return read is not None and read.copying_since is not None


def is_waiting(c: HolderCore, e: object) -> bool:
    """The read has not ended, and no frame of it is under way."""
    assert isinstance(e, messages.Cancel)
    return e.id in c.reads


# Actions.


def open_handoff(c: HolderCore, e: object) -> None:
    """Count the reader in, and tell it what there is."""
    assert isinstance(e, messages.Open)
    held = c.ledger.open(e.handoff, e.lease, e.reader, c.now)
    if held == "too_many":
        error = TooMany("as many readers have come as it is for", "open.reader")
        c.say_error(e.id, error)
    elif isinstance(held, str):
        c.say_gone(e.id, e.handoff, e.lease, held)
    else:
        c.opens[e.handoff] = Claim(e.lease, e.reader, held.tables)
        c.say(
            messages.Lease(
                id=e.id,
                num_tokens=held.num_tokens,
                tables=held.tables,
                readers=held.readers,
                left=held.left,
                expires_ms=_ms(held.left_s),
                num_encoder_tokens=held.num_encoder_tokens,
            )
        )


def refuse_second_reader(c: HolderCore, e: object) -> None:
    """Fail the request alone."""
    assert isinstance(e, messages.Open)
    c.say_error(e.id, OutOfTurn("open in this session for another reader", "open.reader"))


def refuse_open(c: HolderCore, e: object) -> None:
    """Fail the request alone."""
    assert isinstance(e, messages.Open)
    c.say_error(e.id, TooMany(f"{MAX_OPEN} handoffs are open in this session", "open"))


def refuse_read(c: HolderCore, e: object) -> None:
    """Fail the request alone."""
    assert isinstance(e, messages.Read)
    c.say_error(e.id, TooMany(f"{MAX_READS} reads of this session have not ended", "read"))


def refuse_stream(c: HolderCore, e: object) -> None:
    """Fail the request alone."""
    assert isinstance(e, messages.Read)
    c.say_error(e.id, BadRead(f"{e.stream} is not attached", "read.stream"))


def answer_not_open(c: HolderCore, e: object) -> None:
    """Say what became of the lease, if it was open; a request may cross the news of its end."""
    assert isinstance(e, AboutOpen)
    claim = c.closed.get(e.handoff)
    gone = claim and c.ledger.confirm(e.handoff, claim.lease, claim.reader, c.now)
    if isinstance(gone, str):
        c.say(messages.Expired(e.id, gone))
    else:
        c.say_error(e.id, OutOfTurn("the handoff is not open in this session", "handoff"))


def start_read(c: HolderCore, e: object) -> None:
    """Have the owner serve it, if there is something to send."""
    assert isinstance(e, messages.Read)
    claim = c.opens[e.handoff]
    gone = c.ledger.confirm(e.handoff, claim.lease, claim.reader, c.now)
    if isinstance(gone, str):
        c.say_gone(e.id, e.handoff, claim.lease, gone)
        return
    try:
        num_bytes = c.measure(e, claim.tables)
    except WireError as error:
        c.say_error(e.id, error)
        return
    if num_bytes == 0:
        c.say(messages.ReadEnd(e.id, 0))
        return
    c.reads[e.id] = Serving(e.handoff, claim, e.stream, num_bytes)
    c.events.append(Serve(e.id, claim.lease, e, num_bytes))


def fail_map(c: HolderCore, _e: object) -> None:
    """Nothing of a feature may be said that was not agreed on."""
    break_off(c, OutOfTurn(f"the session is without the feature {messages.SHM!r}", "map"))


def map_blocks(c: HolderCore, e: object) -> None:
    """Say where they are, as long as they are held."""
    assert isinstance(e, messages.Map)
    assert c.locate is not None
    claim = c.opens[e.handoff]
    gone = c.ledger.confirm(e.handoff, claim.lease, claim.reader, c.now)
    if isinstance(gone, str):
        c.say_gone(e.id, e.handoff, claim.lease, gone)
        return
    try:
        check_blocks(e.blocks, e.table, claim.tables, ("map.table", "map.blocks"))
        c.say(c.locate(e, claim.lease))
    except Unsendable:
        c.say_error(e.id, TooMany("more pools and ranges of blocks than a message holds", "map"))
    except WireError as error:
        c.say_error(e.id, error)


def fail_cancel(c: HolderCore, e: object) -> None:
    """The reader makes up ids."""
    assert isinstance(e, messages.Cancel)
    break_off(c, OutOfTurn(f"{e.id} was not asked for", "cancel.id"))


def mark_cancelled(c: HolderCore, e: object) -> None:
    """Its end is told when the frame under way is."""
    assert isinstance(e, messages.Cancel)
    c.reads[e.id].is_cancelled = True


def cancel_waiting(c: HolderCore, e: object) -> None:
    """It has ended."""
    assert isinstance(e, messages.Cancel)
    del c.reads[e.id]
    c.say(messages.Cancelled(e.id))


def confirm_lease(c: HolderCore, e: object) -> None:
    """Say for how long the lease is still held."""
    assert isinstance(e, messages.Confirm)
    claim = c.opens[e.handoff]
    left_s = c.ledger.confirm(e.handoff, claim.lease, claim.reader, c.now)
    _say_confirmed(c, e.id, e.handoff, left_s)


def renew_lease(c: HolderCore, e: object) -> None:
    """Hold it longer."""
    assert isinstance(e, messages.Renew)
    claim = c.opens[e.handoff]
    left_s = c.ledger.renew(e.handoff, claim.lease, claim.reader, c.now)
    _say_confirmed(c, e.id, e.handoff, left_s)


def _say_confirmed(c: HolderCore, id_: int, handoff: str, left_s: float | messages.Gone) -> None:
    if isinstance(left_s, str):
        c.say_gone(id_, handoff, c.opens[handoff].lease, left_s)
    else:
        c.say(messages.Confirmed(id_, _ms(left_s)))


def end_share(c: HolderCore, e: object) -> None:
    """The reader has ended the handoff."""
    assert isinstance(e, messages.Done | messages.Release)
    claim = c.opens[e.handoff]
    left = c.ledger.done(e.handoff, claim.lease, claim.reader, c.now)
    if isinstance(left, str):
        c.say_gone(e.id, e.handoff, claim.lease, left)
    else:
        c.close(e.handoff, claim.lease, "ended")
        c.say(messages.Ended(e.id, left))


def forgo_handoff(c: HolderCore, e: object) -> None:
    """End the handoff for all its readers."""
    assert isinstance(e, messages.Forgo)
    gone = c.ledger.forgo(e.handoff, e.lease, c.now)
    if gone is None:
        c.close(e.handoff, e.lease, "ended")
        c.say(messages.Ended(e.id, 0))
    else:
        c.say_gone(e.id, e.handoff, e.lease, gone)


def fail_reads_of_stream(c: HolderCore, e: object) -> None:
    """Their bytes can go nowhere; one that is being copied is told when that is over."""
    assert isinstance(e, StreamLost)
    for id_, read in list(c.reads.items()):
        if read.stream == e.stream:
            fail_read(c, id_, WireError(f"the data stream {e.stream} has ended", "read.stream"))


def fail_read(c: HolderCore, id_: int, error: WireError) -> None:
    """End a read by an error, at once or when the frame under way is over."""
    read = c.reads[id_]
    if read.copying_since is None:
        del c.reads[id_]
        c.say_error(id_, error)
    else:
        read.failed = error


def _ms(seconds: float) -> int:
    """Rounded down: nobody is promised more than there is."""
    return int(seconds * 1000)
