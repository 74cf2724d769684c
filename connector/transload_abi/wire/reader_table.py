"""A reader's side of a session as a table: state and event to what is done and the next state.

**Rules**

1. A holder is told nothing but names before it has proven that it knows the token, and must be the
   start that the handoff names.
2. Each request and each read has one outcome. What still lacks one when the session ends gets it
   then.
3. A read is complete when the holder has ended it as all sent and held, and all its bytes have
   come, each once. `read_end` may come before data that are on another stream.
4. Bytes that do not fit fail the read alone, and name the holder. A read that was given up is
   remembered until the holder has ended it too; what still comes of it is dropped. Data of what was
   never asked for, and answers to it, end the session: whatever has no row here is out of turn.
5. The end of a session ends no lease.

For each (state, event) the first row whose guard holds is taken; none: the holder is at fault.
`ENDED` has no rows: whatever comes is dropped.

::

    NEW ──► WELCOME ──► ACCEPT ──► DESCRIPTOR ──► OPEN ─┐
              │ └─► FORGOING (no descriptor)       │    ▼
              └──────────┴──────────────┴──────────┴─► ENDED
"""

from typing import Final

from transload_abi.wire import messages
from transload_abi.wire import reader_answers as answers
from transload_abi.wire import reader_opening as opening
from transload_abi.wire.errors import OutOfTurn
from transload_abi.wire.reader_state import (
    BeginAsked,
    DataBegun,
    DataCame,
    DescriptorCame,
    ReaderCore,
    ReaderState,
    ReadOverdue,
    StreamAttached,
)
from transload_abi.wire.session_events import (
    Broken,
    EndAsked,
    Idle,
    Lost,
    Overdue,
    Row,
    StreamLost,
    always,
)

S = ReaderState
ReaderRow = Row[ReaderCore, ReaderState]
Rows = dict[tuple[ReaderState, type], tuple[ReaderRow, ...]]

_SESSION_ERROR: Final = Row(
    answers.is_of_session, (opening.end_by_error,), S.ENDED, "the holder ends it as our fault"
)
_CANCELLED: Final = Row(
    answers.ends_cancelled, (answers.forget_cancelled,), S.OPEN, "of a read given up meanwhile"
)


def _ends(state: ReaderState) -> Rows:
    """Ways in which a session ends that are the same in all states."""
    return {
        (state, Lost): (Row(always, (opening.end_by_loss,), S.ENDED, "the holder is gone"),),
        (state, EndAsked): (Row(always, (opening.end_asked,), S.ENDED, "the owner ends it"),),
    }


def _ends_begun(state: ReaderState) -> Rows:
    """And those that need a holder which has been spoken to."""
    return _ends(state) | {
        (state, messages.Bye): (Row(always, (opening.end_by_bye,), S.ENDED, "the holder ends it"),),
        (state, Broken): (
            Row(always, (opening.break_off_for,), S.ENDED, "what came breaks a rule"),
        ),
        (state, Overdue): (Row(always, (opening.end_overdue,), S.ENDED, "the holder is stuck"),),
    }


def _answers(state: ReaderState) -> Rows:
    """What may answer a request wherever there are any, reads aside."""
    return {
        (state, messages.Ended): (
            Row(answers.answers_end, (answers.take_ended,), state, "ended for this reader"),
        ),
    }


TABLE: Final[Rows] = {
    (S.NEW, BeginAsked): (Row(always, (opening.say_hello,), S.WELCOME, "introduce this side"),),
    (S.WELCOME, messages.Welcome): (
        Row(opening.is_proof_wrong, (opening.fail_proof,), S.ENDED, "another token"),
        Row(opening.is_version_unasked, (opening.fail_version,), S.ENDED, "a stranger's version"),
        Row(opening.is_more_than_asked, (opening.fail_excess,), S.ENDED, "it was not offered"),
        Row(opening.is_other_start, (opening.end_other_start,), S.ENDED, "no handoff outlives it"),
        Row(
            opening.has_no_descriptor,
            (opening.note_welcome, opening.say_prove, opening.tell_forgoing, opening.wait_anew),
            S.FORGOING,
            "there will be no reading",
        ),
        Row(
            always,
            (opening.note_welcome, opening.say_prove, opening.say_descriptor),
            S.ACCEPT,
            "both know the token",
        ),
    ),
    (S.WELCOME, messages.Error): (_SESSION_ERROR,),
    (S.ACCEPT, messages.Accept): (
        Row(always, (opening.note_accept,), S.DESCRIPTOR, "the blocks convert"),
    ),
    (S.ACCEPT, messages.Refuse): (Row(always, (opening.end_refused,), S.ENDED, "they never do"),),
    (S.ACCEPT, messages.Error): (_SESSION_ERROR,),
    (S.DESCRIPTOR, DescriptorCame): (
        Row(always, (opening.tell_ready, opening.wait_anew), S.OPEN, "the owner may read"),
    ),
    (S.DESCRIPTOR, messages.Error): (_SESSION_ERROR,),
    (S.FORGOING, messages.Expired): (
        Row(answers.answers_any, (answers.take_gone,), S.FORGOING, "it is gone already"),
    ),
    (S.FORGOING, messages.Error): (
        _SESSION_ERROR,
        Row(answers.answers_any, (answers.take_refusal,), S.FORGOING, "it cannot be served"),
    ),
    (S.FORGOING, Idle): (Row(always, (opening.end_idle,), S.ENDED, "nothing to forgo"),),
    (S.OPEN, messages.Lease): (
        Row(answers.answers_open, (answers.take_lease,), S.OPEN, "the handoff is open"),
    ),
    (S.OPEN, messages.Confirmed): (
        Row(answers.answers_lease, (answers.take_confirmed,), S.OPEN, "the lease is held"),
    ),
    (S.OPEN, messages.Mapped): (
        Row(answers.answers_map, (answers.take_mapped,), S.OPEN, "where the blocks are"),
    ),
    (S.OPEN, messages.Expired): (
        Row(answers.answers_any, (answers.take_gone,), S.OPEN, "the lease is not held"),
        Row(answers.ends_read, (answers.fail_expired_read,), S.OPEN, "its bytes are worthless"),
        _CANCELLED,
    ),
    (S.OPEN, messages.Error): (
        _SESSION_ERROR,
        Row(answers.answers_any, (answers.take_refusal,), S.OPEN, "it cannot be served"),
        Row(answers.ends_read, (answers.fail_refused_read,), S.OPEN, "it cannot be read"),
        _CANCELLED,
    ),
    (S.OPEN, messages.ReadEnd): (
        Row(answers.ends_full_read, (answers.complete_read,), S.OPEN, "all came, and was held"),
        Row(
            answers.ends_read_before_its_data,
            (answers.note_end,),
            S.OPEN,
            "data on another stream may be later",
        ),
        Row(answers.ends_read, (answers.fail_short_read,), S.OPEN, "sizes differ"),
        _CANCELLED,
    ),
    (S.OPEN, messages.Cancelled): (_CANCELLED,),
    (S.OPEN, DataBegun): (
        Row(answers.was_never_read, (opening.break_off_unasked,), S.ENDED, "nobody asked"),
        Row(answers.is_of_ended_read, (), S.OPEN, "it crosses the read's end"),
        Row(
            answers.is_misplaced,
            (answers.fail_data("not the stream asked for, or no checksum"),),
            S.OPEN,
            "not as it was asked for",
        ),
        Row(
            answers.is_beyond,
            (answers.fail_data("beyond the read's end"),),
            S.OPEN,
            "no room for it",
        ),
        Row(
            answers.is_twice,
            (answers.fail_data("some of them twice"),),
            S.OPEN,
            "which would be right?",
        ),
        Row(
            answers.is_scattered,
            (answers.fail_data("in too many pieces apart"),),
            S.OPEN,
            "memory is bounded",
        ),
        Row(always, (answers.begin_data,), S.OPEN, "its bytes follow"),
    ),
    (S.OPEN, DataCame): (
        Row(answers.is_of_ended_read, (), S.OPEN, "dropped"),
        Row(answers.is_spoiled, (answers.fail_spoiled,), S.OPEN, "not what was sent"),
        Row(
            answers.is_last_of_ended,
            (answers.take_data, answers.complete_read),
            S.OPEN,
            "the last bytes, behind the holder's word",
        ),
        Row(always, (answers.take_data,), S.OPEN, "some bytes"),
    ),
    (S.OPEN, ReadOverdue): (
        Row(always, (answers.fail_overdue,), S.OPEN, "the read fails, the session goes on"),
    ),
    (S.OPEN, StreamAttached): (
        Row(
            opening.is_asked_for,
            (opening.attach_stream, opening.tell_stream_ready),
            S.OPEN,
            "a stream for data",
        ),
    ),
    (S.OPEN, StreamLost): (
        Row(
            opening.is_attaching,
            (opening.forget_attaching, opening.tell_stream_failed),
            S.OPEN,
            "it was refused",
        ),
        Row(
            opening.is_attached,
            (opening.forget_stream, opening.fail_reads_of_stream, opening.tell_stream_failed),
            S.OPEN,
            "its reads fail, the session goes on",
        ),
        Row(always, (), S.OPEN, "known already"),
    ),
    (S.OPEN, Idle): (Row(always, (opening.end_idle,), S.ENDED, "nothing to read"),),
    **_answers(S.OPEN),
    **_answers(S.FORGOING),
    **_ends(S.NEW),
    **_ends_begun(S.WELCOME),
    **_ends_begun(S.ACCEPT),
    **_ends_begun(S.DESCRIPTOR),
    **_ends_begun(S.OPEN),
    **_ends_begun(S.FORGOING),
}


def step(core: ReaderCore, event: object) -> None:
    """Take an event; without effect once the session has ended."""
    if core.state is S.ENDED:
        return
    for row in TABLE.get((core.state, type(event)), ()):
        if row.guard(core, event):
            for action in row.actions:
                action(core, event)
            core.state = row.target
            return
    what = type(event).__name__.lower()
    core.break_off(OutOfTurn(f"not while the session is at {core.state}, or not that one", what))
    core.state = S.ENDED
