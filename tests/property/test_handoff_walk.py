"""Random walks over all legal events of the handoff machine, with a ledger of its handoffs."""

from dataclasses import dataclass, field
from typing import assert_never

from hypothesis import given, settings
from hypothesis import strategies as st

from transload_router.core.handoff import (
    MAX_UNREACHABLE,
    AbandonPrefill,
    Cause,
    ChooseEngines,
    ClientGone,
    CloseDecode,
    Command,
    Count,
    DecodeAnswered,
    DecodeEnded,
    DecodeFailed,
    EndStream,
    EnginesChosen,
    Event,
    Fail,
    Handoff,
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

CAUSES: tuple[Cause, ...] = ("unreachable", "timeout", "reset", "bad_answer")
POLICIES = st.builds(HandoffPolicy, st.booleans(), st.booleans(), st.booleans())
# Those that a machine could treat apart, not a thousand alike.
STATUSES = st.sampled_from((200, 201, 302, 400, 404, 408, 422, 429, 499, 500, 501, 502, 503, 504))
FAILURES = STATUSES.filter(lambda status: status >= 300)
ENGINES = 4


@dataclass
class Shell:
    """A shell that performs commands by writing them down, and invents what happens next."""

    data: st.DataObject
    asked: ChooseEngines | None = None
    num_prefills: int = 0
    num_prefills_sent: int = 0
    num_decodes_sent: int = 0
    num_unsent: int = 0
    num_answers: int = 0
    is_client_gone: bool = False
    issued: list[bytes] = field(default_factory=list)
    presented: bytes | None = None
    consumed: list[bytes] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)

    def perform(self, command: Command) -> None:
        match command:
            case ChooseEngines():
                self.asked = command
            case SendPrefill(engine):
                assert self.asked is not None
                assert self.asked.wants_prefill
                assert engine not in self.asked.avoid
                self.num_prefills += 1
            case SendDecode(engine, handoff):
                assert self.asked is not None
                assert engine not in self.asked.avoid
                assert handoff not in self.consumed, "presented after it was sent"
                assert handoff not in self.released, "presented after its release"
                self.presented = handoff
            case Release(handoff):
                assert handoff not in self.consumed, "released after a decode engine had it"
                assert handoff not in self.released, "released twice"
                self.released.append(handoff)
            case RelayDecode() | PassRefusal() | Fail():
                self.num_answers += 1
                assert not self.is_client_gone
            case AbandonPrefill() | CloseDecode() | EndStream() | Count():
                pass
            case _:
                assert_never(command)

    def event(self, state: State) -> Event:
        draw = self.data.draw
        if state is State.CHOOSING:
            return self._engines()
        if state is State.PREFILLING:
            return draw(
                st.one_of(
                    st.booleans().map(lambda has: PrefillReplied(self._issue() if has else None)),
                    st.builds(PrefillRefused, FAILURES, st.booleans()),
                    st.builds(PrefillFailed, st.sampled_from(CAUSES), st.booleans(), st.booleans()),
                    st.builds(ClientGone, st.booleans()),
                )
            )
        if state is State.ABANDONING:
            return draw(
                st.one_of(
                    st.booleans().map(lambda has: PrefillReplied(self._issue() if has else None)),
                    st.builds(PrefillRefused, FAILURES, st.booleans()),
                    st.builds(PrefillFailed, st.sampled_from(CAUSES), st.just(True)),
                )
            )
        if state is State.DECODING:
            return draw(
                st.one_of(
                    st.builds(DecodeAnswered, STATUSES, st.booleans()),
                    st.builds(DecodeAnswered, st.integers(400, 499), st.booleans(), st.just(True)),
                    st.builds(
                        DecodeAnswered, st.sampled_from((400, 422)), st.booleans(), st.just(True)
                    ),
                    st.builds(DecodeFailed, st.sampled_from(CAUSES), st.booleans(), st.booleans()),
                    st.builds(ClientGone, st.booleans()),
                )
            )
        return draw(
            st.one_of(
                st.just(DecodeEnded()),
                st.builds(DecodeFailed, st.sampled_from(CAUSES), st.just(True), st.booleans()),
                st.just(ClientGone(True)),
            )
        )

    def _issue(self) -> bytes:
        return b"{%d}" % len(self.issued)

    def _engines(self) -> EnginesChosen:
        assert self.asked is not None
        avoid = self.asked.avoid
        prefills = [f"p{n}" for n in range(ENGINES) if f"p{n}" not in avoid]
        decodes = [f"d{n}" for n in range(ENGINES) if f"d{n}" not in avoid]
        prefill = self.data.draw(st.sampled_from([None, *prefills]))
        return EnginesChosen(
            prefill if self.asked.wants_prefill else None,
            self.data.draw(st.sampled_from([*decodes, None])),
        )

    def note(self, state: State, event: Event) -> None:
        """Keep the books of what an event means for the leg in flight."""
        match event:
            case PrefillReplied(handoff):
                if handoff is not None:
                    self.issued.append(handoff)
                self.num_prefills_sent += 1
            case PrefillRefused():
                self.num_prefills_sent += 1
            case PrefillFailed(was_sent=was_sent):
                self.num_prefills_sent += was_sent
                self.num_unsent += not was_sent
            case ClientGone(was_sent):
                self.is_client_gone = True
                if state is State.DECODING:
                    self._decode_over(was_sent)
            case DecodeAnswered(is_untouched=is_untouched):
                self._decode_over(True, is_untouched=is_untouched)
            case DecodeFailed(was_sent=was_sent) if state is State.DECODING:
                self._decode_over(was_sent)
            case EnginesChosen() | DecodeEnded() | DecodeFailed():
                pass
            case _:
                assert_never(event)

    def _decode_over(self, was_sent: bool, *, is_untouched: bool = False) -> None:
        self.num_decodes_sent += was_sent
        self.num_unsent += not was_sent
        if was_sent and not is_untouched and self.presented is not None:
            self.consumed.append(self.presented)
        self.presented = None


@settings(max_examples=200, deadline=None)
@given(st.data(), POLICIES, st.booleans())
def test_walk(data: st.DataObject, policy: HandoffPolicy, wants_prefill: bool) -> None:
    machine = Handoff(policy, wants_prefill)
    shell = Shell(data)
    for command in machine.start():
        shell.perform(command)
    while machine.state is not State.DONE:
        before = machine.state
        event = shell.event(before)
        shell.note(before, event)
        commands = machine.handle(event)
        for command in commands:
            shell.perform(command)
        sends = [c for c in commands if isinstance(c, ChooseEngines | SendPrefill | SendDecode)]
        if before is State.RELAYING or shell.is_client_gone:
            assert sends == []
        if isinstance(event, PrefillRefused | DecodeAnswered) and 400 <= event.status < 500:
            assert sends == []
        assert shell.num_prefills_sent <= 2
        assert shell.num_decodes_sent <= 2
        assert shell.num_unsent <= MAX_UNREACHABLE + 1
    assert wants_prefill or shell.num_prefills == 0
    assert shell.num_prefills <= 2 + MAX_UNREACHABLE
    assert shell.num_answers == (0 if shell.is_client_gone and before is not State.RELAYING else 1)
    # Each handoff ended once: with the engine that had it, or released.
    assert sorted(shell.consumed + shell.released) == sorted(shell.issued)
