"""Guards and actions of the table in `stream`: small functions over what a stream remembers."""

from collections.abc import Callable

from transload_router.core.kv_events.memory import Memory
from transload_router.core.kv_events.messages import (
    Count,
    Counted,
    Event,
    Live,
    Replayed,
    RequestReplay,
    SnapshotLoaded,
    Unnumbered,
)

Guard = Callable[[Memory, Event], bool]
Action = Callable[[Memory, Event], None]
Numbered = Live | Replayed

# Guards.


def always(_m: Memory, _e: Event) -> bool:
    """Take the row whatever happened."""
    return True


def is_unplaced(m: Memory, _e: Event) -> bool:
    """Nothing is known, and nothing is asked for: any batch is as good a beginning."""
    return m.next_seq is None


def is_first(m: Memory, e: Event) -> bool:
    """The publisher's very first batch, and nothing is known yet."""
    return isinstance(e, Numbered) and e.seq == 0 == m.next_seq


def is_next(m: Memory, e: Event) -> bool:
    """The batch that follows what was applied."""
    return isinstance(e, Numbered) and e.seq == m.next_seq


def is_next_unreadable(m: Memory, e: Event) -> bool:
    """It follows, and nobody knows what it says."""
    return isinstance(e, Numbered) and e.seq == m.next_seq and m.read(e.payload) is None


def is_beyond(m: Memory, e: Event) -> bool:
    """Batches before it are missing."""
    return isinstance(e, Numbered) and m.next_seq is not None and e.seq > m.next_seq


def is_old(m: Memory, e: Event) -> bool:
    """It was applied already, or came before what is known."""
    return isinstance(e, Numbered) and m.next_seq is not None and e.seq < m.next_seq


def is_overlap(m: Memory, e: Event) -> bool:
    """A replay brought it already; live batches themselves have not gone back."""
    return is_old(m, e) and isinstance(e, Live) and e.seq > m.last_live


def is_restart(m: Memory, e: Event) -> bool:
    """Live batches went back, and this one is younger than all that is known."""
    if not isinstance(e, Live) or (e.seq > m.last_live and not is_old(m, e)):
        return False
    known = [timestamp_s for _, timestamp_s in m.recent if timestamp_s is not None]
    if m.last_live in m.held:
        held = m.read(m.held[m.last_live])
        known += [] if held is None else [held.timestamp_s]
    batch = m.read(e.payload)
    return batch is not None and bool(known) and batch.timestamp_s > max(known)


def is_known(m: Memory, e: Event) -> bool:
    """The very batch is among those applied last, or is held."""
    if not isinstance(e, Live) or e.seq > m.last_live:
        return False
    if m.held.get(e.seq) == e.payload:
        return True
    batch = m.read(e.payload)
    return batch is not None and (e.seq, batch.timestamp_s) in m.recent


def is_full(m: Memory, _e: Event) -> bool:
    """No room for another live batch."""
    return m.is_full


def is_check(m: Memory, e: Event) -> bool:
    """It has the sequence of the batch with which the answer must begin."""
    return m.check is not None and isinstance(e, Replayed) and e.seq == m.check[0]


def is_other_publisher(m: Memory, e: Event) -> bool:
    """Under the sequence of the batch applied last there is another one."""
    if not is_check(m, e) or not isinstance(e, Replayed) or m.check is None:
        return False
    batch = m.read(e.payload)
    return batch is not None and m.check[1] is not None and batch.timestamp_s != m.check[1]


def starts_late(m: Memory, e: Event) -> bool:
    """The answer does not begin where it should: the publisher has forgotten what came before."""
    return m.check is not None or (not m.has_answer and is_beyond(m, e))


def is_check_missing(m: Memory, _e: Event) -> bool:
    """Nothing was answered, not even the batch that was applied last."""
    return m.check is not None


def is_filled(m: Memory, _e: Event) -> bool:
    """With what is held, all batches known to exist are there."""
    if m.next_seq is None:
        return False
    seq = m.next_seq
    while seq in m.held:
        seq += 1
    return seq > m.highest


def is_answered(m: Memory, e: Event) -> bool:
    """All is there but the end marker."""
    return m.has_answer and m.check is None and is_filled(m, e)


def has_progress(m: Memory, _e: Event) -> bool:
    """The answer was cut short, and yet helped."""
    return m.has_progress


# Actions.


def take(m: Memory, e: Event) -> None:
    """Apply it."""
    assert isinstance(e, Numbered)
    m.has_answer = True
    m.highest = max(m.highest, e.seq)
    if isinstance(e, Live):
        m.last_live = max(m.last_live, e.seq)
    m.take(e.seq, e.payload)


def take_unnumbered(m: Memory, e: Event) -> None:
    """Apply it; the stream is never whole, and a numbered batch begins anew."""
    assert isinstance(e, Unnumbered)
    if m.next_seq is not None:
        m.drop_held()
        m.place(None)
        m.check = None
    m.apply(None, e.payload)
    m.is_whole = False


def skip(m: Memory, e: Event) -> None:
    """Leave it."""
    assert isinstance(e, Numbered)
    m.has_answer = True
    m.highest = max(m.highest, e.seq)
    if isinstance(e, Live):
        m.last_live = max(m.last_live, e.seq)


def hold(m: Memory, e: Event) -> None:
    """Keep it until what came before is there."""
    assert isinstance(e, Live)
    m.held[e.seq] = e.payload
    m.num_held_bytes += len(e.payload)
    m.last_live = max(m.last_live, e.seq)
    m.highest = max(m.highest, e.seq)


def place(m: Memory, e: Event) -> None:
    """Begin with it, whatever was known."""
    assert isinstance(e, Numbered)
    m.place(e.seq)
    m.check = None


def request(m: Memory, _e: Event) -> None:
    """Ask for what is missing, from the batch applied last on."""
    if m.next_seq is None:
        m.place(0)
    m.check = m.recent[-1] if m.recent else None
    m.has_answer = m.has_progress = False
    m.out.append(RequestReplay(m.check[0] if m.check is not None else 0))


def confirm(m: Memory, _e: Event) -> None:
    """It is the publisher that is known."""
    m.check = None
    m.has_answer = True


def forget(m: Memory, _e: Event) -> None:
    """A publisher of which nothing is known."""
    m.drop_held()
    m.place(0)
    m.check = None
    m.last_live = -1


def start_over(m: Memory, _e: Event) -> None:
    """What is held stays: it came over the present connection."""
    m.place(0)
    m.last_live = m.highest


def drop_held(m: Memory, _e: Event) -> None:
    """A replay asked for from now on brings it."""
    m.drop_held()


def merge(m: Memory, _e: Event) -> None:
    """Apply what is held and follows."""
    while m.next_seq is not None and m.next_seq in m.held:
        m.take(m.next_seq, m.held[m.next_seq])
    m.drop_held()


def give_up(m: Memory, e: Event) -> None:
    """Go on from what is held without a gap, with nothing known of before."""
    m.check = None
    first = max(m.held, default=None)
    while first is not None and first - 1 in m.held:
        first -= 1
    m.place(first)
    merge(m, e)


def take_position(m: Memory, e: Event) -> None:
    """The index knows what the snapshot's stream knew."""
    assert isinstance(e, SnapshotLoaded)
    m.next_seq = e.seq + 1
    m.recent.append((e.seq, e.timestamp_s))
    m.highest = e.seq
    m.is_whole = e.is_whole
    m.has_content = True


def count(what: Counted) -> Action:
    """An action that counts."""

    def action(m: Memory, _e: Event) -> None:
        m.out.append(Count(what))

    return action
