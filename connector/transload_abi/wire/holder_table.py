"""A holder's side of a session as a table: state and event to what is done and the next state.

**Rules**

1. Until a reader has proven that it knows the token it learns names and nothing else; until its
   descriptor is found to convert it reads nothing. Only `forgo` needs no descriptor.
2. Each request gets one answer. All but reads get theirs at once.
3. What cannot be served fails alone (`expired`, or `error` with the request's id). Who breaks the
   order of the conversation ends it: whatever has no row here is out of turn.
4. A connection that asks to be a data stream and may not is refused without harm to the session:
   it may be a stranger's.
5. The end of a session ends no lease.

For each (state, event) the first row whose guard holds is taken. `HELLO` lasts for one message, as
a connection is no session before it. `ENDED` has no rows: whatever comes is dropped.

::

    HELLO ──► PROOF ──► DESCRIPTOR ──► OPEN ─┐
      │         │        │ └► FORGOING   │   ▼
      └─────────┴────────┴─────┴─────────┴─► ENDED
"""

from typing import Final

from transload_abi.wire import holder_opening as opening
from transload_abi.wire import holder_requests as requests
from transload_abi.wire import messages
from transload_abi.wire.errors import OutOfTurn
from transload_abi.wire.holder_state import (
    Compatible,
    HolderCore,
    HolderState,
    Incompatible,
    StreamAsked,
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

S = HolderState
HolderRow = Row[HolderCore, HolderState]

_NOT_OPEN: Final = Row(
    requests.is_not_open, (requests.answer_not_open,), S.OPEN, "never opened, or gone meanwhile"
)


def _ends(state: HolderState) -> dict[tuple[HolderState, type], tuple[HolderRow, ...]]:
    """Ways in which a session ends that are the same wherever it has begun."""
    return {
        (state, messages.Bye): (Row(always, (opening.end_by_bye,), S.ENDED, "the reader ends it"),),
        (state, Lost): (Row(always, (opening.end_by_loss,), S.ENDED, "the reader is gone"),),
        (state, Broken): (
            Row(always, (opening.break_off_for,), S.ENDED, "what came breaks a rule"),
        ),
        (state, Overdue): (Row(always, (opening.end_overdue,), S.ENDED, "the reader is stuck"),),
        (state, EndAsked): (Row(always, (opening.end_asked,), S.ENDED, "the owner ends it"),),
    }


def _early(state: HolderState) -> dict[tuple[HolderState, type], tuple[HolderRow, ...]]:
    """A data stream before the session is open."""
    return {
        (state, StreamAsked): (
            Row(always, (opening.refuse_early_stream,), state, "nobody may read yet"),
        )
    }


TABLE: Final[dict[tuple[HolderState, type], tuple[HolderRow, ...]]] = {
    (S.HELLO, messages.Hello): (
        Row(opening.shares_no_version, (opening.fail_version,), S.ENDED, "a stranger's version"),
        Row(always, (opening.note_hello, opening.say_welcome), S.PROOF, "both are introduced"),
    ),
    (S.PROOF, messages.Prove): (
        Row(opening.is_proof_wrong, (opening.fail_proof,), S.ENDED, "another token"),
        Row(always, (), S.DESCRIPTOR, "it knows the token"),
    ),
    (S.DESCRIPTOR, Compatible): (
        Row(always, (opening.say_accept, opening.tell_accepted), S.OPEN, "the blocks convert"),
    ),
    (S.DESCRIPTOR, Incompatible): (
        Row(always, (opening.refuse_reader,), S.ENDED, "they never do"),
    ),
    (S.DESCRIPTOR, messages.Forgo): (
        Row(
            always,
            (requests.forgo_handoff, opening.wait_anew),
            S.FORGOING,
            "a router gives up what nobody will read",
        ),
    ),
    (S.FORGOING, messages.Forgo): (
        Row(always, (requests.forgo_handoff, opening.wait_anew), S.FORGOING, "and more of it"),
    ),
    (S.OPEN, messages.Open): (
        Row(
            requests.is_open_for_another,
            (requests.refuse_second_reader,),
            S.OPEN,
            "whose done is done could not be told",
        ),
        Row(requests.has_max_open, (requests.refuse_open,), S.OPEN, "too many are open"),
        Row(always, (requests.open_handoff,), S.OPEN, "a reader comes"),
    ),
    (S.OPEN, messages.Read): (
        _NOT_OPEN,
        Row(requests.has_max_reads, (requests.refuse_read,), S.OPEN, "too many are under way"),
        Row(requests.lacks_stream, (requests.refuse_stream,), S.OPEN, "nowhere to send it"),
        Row(always, (requests.start_read,), S.OPEN, "served when the owner comes to it"),
    ),
    (S.OPEN, messages.Cancel): (
        Row(requests.was_never_asked, (requests.fail_cancel,), S.ENDED, "an id of the future"),
        Row(requests.is_copying, (requests.mark_cancelled,), S.OPEN, "answered after the frame"),
        Row(requests.is_waiting, (requests.cancel_waiting,), S.OPEN, "ended between frames"),
        Row(always, (), S.OPEN, "it has crossed the read's end, which is its answer"),
    ),
    (S.OPEN, messages.Map): (
        Row(requests.lacks_shm, (requests.fail_map,), S.ENDED, "a feature that was not agreed on"),
        _NOT_OPEN,
        Row(always, (requests.map_blocks,), S.OPEN, "to be read where they are, then confirmed"),
    ),
    (S.OPEN, messages.Confirm): (
        _NOT_OPEN,
        Row(always, (requests.confirm_lease,), S.OPEN, "is it still held?"),
    ),
    (S.OPEN, messages.Renew): (
        _NOT_OPEN,
        Row(always, (requests.renew_lease,), S.OPEN, "hold it longer"),
    ),
    (S.OPEN, messages.Done): (
        _NOT_OPEN,
        Row(always, (requests.end_share,), S.OPEN, "a reader has what it wanted"),
    ),
    (S.OPEN, messages.Release): (
        _NOT_OPEN,
        Row(always, (requests.end_share,), S.OPEN, "a reader will not read"),
    ),
    (S.OPEN, messages.Forgo): (Row(always, (requests.forgo_handoff,), S.OPEN, "nobody will read"),),
    (S.OPEN, StreamAsked): (
        Row(
            opening.is_stream_proof_wrong,
            (opening.refuse_unproven_stream,),
            S.OPEN,
            "it is not this reader's",
        ),
        Row(opening.is_stream_taken, (opening.refuse_taken_stream,), S.OPEN, "not offered, or had"),
        Row(always, (opening.attach_stream, opening.say_attached), S.OPEN, "a stream for data"),
    ),
    (S.OPEN, StreamLost): (
        Row(
            always,
            (opening.lose_stream, requests.fail_reads_of_stream),
            S.OPEN,
            "its reads fail, the session goes on",
        ),
    ),
    (S.OPEN, Idle): (Row(always, (opening.end_idle,), S.ENDED, "nobody misses it"),),
    **_early(S.PROOF),
    **_early(S.DESCRIPTOR),
    **_early(S.FORGOING),
    **_ends(S.PROOF),
    **_ends(S.DESCRIPTOR),
    **_ends(S.FORGOING),
    **_ends(S.OPEN),
}


def step(core: HolderCore, event: object) -> None:
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
    opening.break_off(core, OutOfTurn(f"it may not come while a {core.state} is waited for", what))
    core.state = S.ENDED
