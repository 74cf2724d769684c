"""One request's way from prefill to decode: events in, commands out, a transition table.

**Rules**

1. Both legs share one fate: the first final failure decides the answer and ends the other leg.
2. A handoff is single-use. Before a byte of the decode request was sent it may be presented to
   another engine; after any status, reset or timeout it is consumed, and only a fresh prefill
   gives another. (An engine that refused a request without looking at its handoff has not
   consumed it; it is released then, not presented again.)
3. At most one retry after a leg was sent, elsewhere, and none once the client has a byte.
   Connections that failed before a byte was sent do not count against that, but are bounded.
4. A client error (4xx) is passed on: it is never retried.
5. An unconsumed handoff is released whatever happens, once. A consumed one is the decode
   engine's to release: a second release could free blocks that are being read, and raises
   prefill's wrong-token alarm (`vllm:nixl_num_notifications_after_expiry_total`).
6. Nothing falls back in silence: each fallback is a `Count` command.

**Theory of operation**

The machine is plain data. The shell feeds it what happened (`handle`), performs the commands it
returns in order, and feeds it again. The shell resolves engines (`ChooseEngines` is answered by
`EnginesChosen`) and tells with each failure whether another engine would be there to try.

For each (state, event) the table lists rows; the first row whose guard holds is taken. A row is
(guard, actions, next state); guards and actions are the small functions below the table. A pair
that is not in the table is a defect of the shell and raises.

::

    CHOOSING ──► PREFILLING ──► DECODING ──► RELAYING ──► DONE
        │  ▲          │  │          │             ▲
        │  └──retry───┼──┼──────────┤             │ (local: no prefill)
        └─────────────┼──┼──────────┴─────────────┘
                      │  └► ABANDONING (client gone; prefill may have answered already)
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from transload_router.core.handoff.messages import (
    AbandonPrefill,
    ChooseEngines,
    ClientGone,
    CloseDecode,
    Command,
    Count,
    Counted,
    DecodeAnswered,
    DecodeEnded,
    DecodeFailed,
    EndStream,
    EnginesChosen,
    Event,
    Fail,
    FailReason,
    HandoffPolicy,
    PassRefusal,
    PrefillFailed,
    PrefillRefused,
    PrefillReplied,
    RelayDecode,
    Release,
    SendDecode,
    SendPrefill,
    State,
)

# Statuses with which an engine says "not I, not now". 500 is among decode's: it is how vLLM
# reports a KV load that failed (kv_load_failure_policy=fail), which a fresh prefill repairs.
PREFILL_RETRIABLE = frozenset({502, 503, 504})
DECODE_RETRIABLE = frozenset({500, 502, 503, 504})
LOCAL_RETRIABLE = PREFILL_RETRIABLE
# Connections refused before another engine is not tried any more, per request: enough for a
# rollout, too few for a walk over a dead fleet at one connect timeout each.
MAX_UNREACHABLE = 3


@dataclass(slots=True)
class Handoff:
    """The machine of one request.

    Attributes:
        policy: The operator's choices.
        wants_prefill: False where one engine must serve the request, or had to in the end.
        state: Where the request is.
        handoff: The unconsumed handoff, if any.
        prefill: Engine of the last prefill leg.
        decode: Engine chosen for decode.
        avoid: Engines that failed this request.
        retries_left: Sent legs that may still be repeated.
        num_unreachable: Connections that failed so far.
    """

    policy: HandoffPolicy
    wants_prefill: bool
    state: State = State.CHOOSING
    handoff: bytes | None = None
    prefill: str | None = None
    decode: str | None = None
    avoid: frozenset[str] = frozenset()
    retries_left: int = 1
    num_unreachable: int = 0
    out: list[Command] = field(default_factory=list)

    def start(self) -> list[Command]:
        """The first command; call once."""
        return [ChooseEngines(self.wants_prefill, self.avoid)]

    def handle(self, event: Event) -> list[Command]:
        """Take one step.

        Returns:
            Commands to perform in order, before the next event.

        Raises:
            AssertionError: The shell sent an event that this state cannot have.
        """
        for guard, actions, target in TABLE.get((self.state, type(event)), ()):
            if guard(self, event):
                self.out = []
                for action in actions:
                    action(self, event)
                self.state = target
                return self.out
        raise AssertionError(f"{event!r} cannot happen while {self.state}")


Guard = Callable[[Handoff, "Event"], bool]
Action = Callable[[Handoff, "Event"], None]
Row = tuple[Guard, tuple[Action, ...], State]


# Guards.


def always(_m: Handoff, _e: Event) -> bool:
    """Take the row whatever happened."""
    return True


def has_no_decode(_m: Handoff, e: Event) -> bool:
    """No engine can decode."""
    return isinstance(e, EnginesChosen) and e.decode is None


def needs_no_prefill(m: Handoff, _e: Event) -> bool:
    """One engine serves it, or a handoff is at hand."""
    return not m.wants_prefill or m.handoff is not None


def is_chosen_local(_m: Handoff, e: Event) -> bool:
    """The policy found it cheaper to let decode read the prompt."""
    return isinstance(e, EnginesChosen) and e.is_local


def has_prefill(_m: Handoff, e: Event) -> bool:
    """A prefill engine was chosen."""
    return isinstance(e, EnginesChosen) and e.prefill is not None


def may_skip_empty_prefill(m: Handoff, _e: Event) -> bool:
    """The operator lets decode read prompts while no prefill engine is up."""
    return m.policy.local_when_empty


def has_handoff(_m: Handoff, e: Event) -> bool:
    """Prefill gave the parameters."""
    return isinstance(e, PrefillReplied) and e.handoff is not None


def may_recompute(m: Handoff, _e: Event) -> bool:
    """The operator lets decode read prompts that came without a handoff."""
    return m.policy.recompute_missing


def can_retry_prefill(m: Handoff, e: Event) -> bool:
    """The leg failed in a way that another engine may mend, and one is there."""
    if isinstance(e, PrefillRefused):
        return e.status in PREFILL_RETRIABLE and e.has_other and m.retries_left > 0
    return isinstance(e, PrefillFailed) and e.was_sent and e.has_other and m.retries_left > 0


def is_unsent(m: Handoff, e: Event) -> bool:
    """No byte was sent: the engine is as good as not there."""
    return (
        isinstance(e, PrefillFailed | DecodeFailed)
        and not e.was_sent
        and m.num_unreachable < MAX_UNREACHABLE
    )


def is_unsent_with_other(m: Handoff, e: Event) -> bool:
    """No byte was sent, and another engine can take the very same request."""
    return is_unsent(m, e) and isinstance(e, DecodeFailed) and e.has_other


def may_go_local(m: Handoff, e: Event) -> bool:
    """Prefill failed (no client error), and the operator lets decode read the prompt."""
    if isinstance(e, PrefillRefused) and e.status not in PREFILL_RETRIABLE:
        return False
    return m.policy.local_when_failed


def is_untouched(_m: Handoff, e: Event) -> bool:
    """Decode refused the request and left the handoff alone."""
    return isinstance(e, DecodeAnswered) and e.is_untouched


def can_retry_decode(m: Handoff, e: Event) -> bool:
    """Another engine may mend it, after a fresh prefill."""
    if isinstance(e, DecodeAnswered):
        retriable = DECODE_RETRIABLE if m.handoff is not None else LOCAL_RETRIABLE
        return e.status in retriable and e.has_other and m.retries_left > 0
    return isinstance(e, DecodeFailed) and e.was_sent and e.has_other and m.retries_left > 0


# Actions.


def take_engines(m: Handoff, e: Event) -> None:
    """Remember the choice."""
    assert isinstance(e, EnginesChosen)
    m.prefill = e.prefill
    m.decode = e.decode


def keep_handoff(m: Handoff, e: Event) -> None:
    """Remember what prefill gave."""
    assert isinstance(e, PrefillReplied)
    m.handoff = e.handoff


def send_prefill(m: Handoff, _e: Event) -> None:
    """Prefill leg to the engine chosen."""
    assert m.prefill is not None
    m.out.append(SendPrefill(m.prefill))


def send_decode(m: Handoff, _e: Event) -> None:
    """Decode leg to the engine chosen; the handoff counts as unconsumed until sent."""
    assert m.decode is not None
    m.out.append(SendDecode(m.decode, m.handoff))


def consume(m: Handoff, _e: Event) -> None:
    """The handoff was presented: it is the decode engine's now."""
    m.handoff = None


def consume_if_sent(m: Handoff, e: Event) -> None:
    """The handoff went with the request, if the request went."""
    if isinstance(e, ClientGone | DecodeFailed) and e.was_sent:
        m.handoff = None


def release(m: Handoff, _e: Event) -> None:
    """Free prefill's blocks, if a handoff is left over."""
    if m.handoff is not None:
        m.out.append(Release(m.handoff))
        m.handoff = None


def avoid_prefill(m: Handoff, _e: Event) -> None:
    """Do not choose this prefill engine again."""
    assert m.prefill is not None
    m.avoid |= {m.prefill}


def avoid_decode(m: Handoff, _e: Event) -> None:
    """Do not choose this decode engine again."""
    assert m.decode is not None
    m.avoid |= {m.decode}


def note_unreachable(m: Handoff, _e: Event) -> None:
    """Connections that failed are bounded per request."""
    m.num_unreachable += 1


def spend_retry(m: Handoff, _e: Event) -> None:
    """One sent leg is repeated, no more."""
    m.retries_left -= 1


def go_local(m: Handoff, _e: Event) -> None:
    """Decode reads the prompt itself, on whichever engine: prefill is not tried again."""
    m.wants_prefill = False


def count_presented_again(m: Handoff, _e: Event) -> None:
    """Another engine gets the handoff, if there is one."""
    if m.handoff is not None:
        m.out.append(Count("handoff_presented_again"))


def choose(m: Handoff, _e: Event) -> None:
    """Ask for engines; prefill only where no handoff is at hand."""
    m.out.append(ChooseEngines(m.wants_prefill and m.handoff is None, m.avoid))


def count(what: Counted) -> Action:
    """An action that counts a fallback or retry."""

    def action(m: Handoff, _e: Event) -> None:
        m.out.append(Count(what))

    return action


def fail(reason: FailReason) -> Action:
    """An action that answers with our own error."""

    def action(m: Handoff, _e: Event) -> None:
        m.out.append(Fail(reason, was_retried=m.retries_left < 1))

    return action


def emit(command: Command) -> Action:
    """An action that emits a fixed command."""

    def action(m: Handoff, _e: Event) -> None:
        m.out.append(command)

    return action


S = State
TABLE: dict[tuple[State, type], tuple[Row, ...]] = {
    (S.CHOOSING, EnginesChosen): (
        (has_no_decode, (release, fail("no_decode")), S.DONE),
        (needs_no_prefill, (take_engines, send_decode), S.DECODING),
        (is_chosen_local, (take_engines, send_decode), S.DECODING),
        (has_prefill, (take_engines, send_prefill), S.PREFILLING),
        (
            may_skip_empty_prefill,
            (take_engines, go_local, count("empty_prefill"), send_decode),
            S.DECODING,
        ),
        (always, (fail("no_prefill"),), S.DONE),
    ),
    (S.PREFILLING, PrefillReplied): (
        (has_handoff, (keep_handoff, send_decode), S.DECODING),
        (may_recompute, (go_local, count("missing_handoff"), send_decode), S.DECODING),
        (always, (count("missing_handoff"), fail("missing_handoff")), S.DONE),
    ),
    (S.PREFILLING, PrefillRefused): (
        (
            can_retry_prefill,
            (count("prefill_retried"), spend_retry, avoid_prefill, choose),
            S.CHOOSING,
        ),
        (may_go_local, (go_local, count("prefill_failed_local"), send_decode), S.DECODING),
        (always, (emit(PassRefusal()),), S.DONE),
    ),
    (S.PREFILLING, PrefillFailed): (
        (is_unsent, (note_unreachable, avoid_prefill, choose), S.CHOOSING),
        (
            can_retry_prefill,
            (count("prefill_retried"), spend_retry, avoid_prefill, choose),
            S.CHOOSING,
        ),
        (may_go_local, (go_local, count("prefill_failed_local"), send_decode), S.DECODING),
        (always, (fail("leg"),), S.DONE),
    ),
    (S.PREFILLING, ClientGone): ((always, (emit(AbandonPrefill()),), S.ABANDONING),),
    (S.ABANDONING, PrefillReplied): ((always, (keep_handoff, release), S.DONE),),
    (S.ABANDONING, PrefillRefused): ((always, (), S.DONE),),
    (S.ABANDONING, PrefillFailed): ((always, (), S.DONE),),
    (S.DECODING, DecodeAnswered): (
        (is_untouched, (release, emit(RelayDecode())), S.RELAYING),
        (
            can_retry_decode,
            (count("decode_retried"), consume, spend_retry, avoid_decode, choose),
            S.CHOOSING,
        ),
        (always, (consume, emit(RelayDecode())), S.RELAYING),
    ),
    (S.DECODING, DecodeFailed): (
        (
            is_unsent_with_other,
            (note_unreachable, count_presented_again, avoid_decode, choose),
            S.CHOOSING,
        ),
        (
            can_retry_decode,
            (count("decode_retried"), consume, spend_retry, avoid_decode, choose),
            S.CHOOSING,
        ),
        (always, (consume_if_sent, release, fail("leg")), S.DONE),
    ),
    (S.DECODING, ClientGone): ((always, (emit(CloseDecode()), consume_if_sent, release), S.DONE),),
    (S.RELAYING, DecodeEnded): ((always, (), S.DONE),),
    (S.RELAYING, DecodeFailed): ((always, (emit(EndStream()),), S.DONE),),
    (S.RELAYING, ClientGone): ((always, (emit(CloseDecode()),), S.DONE),),
}
