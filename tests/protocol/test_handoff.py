"""Playbooks for the handoff, and a test that they notice each row of the table."""

from collections.abc import Iterator

import pytest

from support.playbook import Script, play, script
from transload_router.core.handoff import (
    MAX_UNREACHABLE,
    TABLE,
    AbandonPrefill,
    ChooseEngines,
    ClientGone,
    CloseDecode,
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
    Row,
    SendDecode,
    SendPrefill,
    State,
    machine,
)

H = b'{"remote_request_id":"r1"}'
H2 = b'{"remote_request_id":"r2"}'
NONE: frozenset[str] = frozenset()
STRICT = HandoffPolicy(recompute_missing=False, local_when_empty=False)
LENIENT = HandoffPolicy(local_when_failed=True)


def avoiding(*engines: str) -> frozenset[str]:
    return frozenset(engines)


# Openings that most conversations share.
ASK = ChooseEngines(True, NONE)
TO_PREFILL = (ASK, EnginesChosen("p0", "d0"), SendPrefill("p0"))
TO_DECODE = (*TO_PREFILL, PrefillReplied(H), SendDecode("d0", H))
TO_CLIENT = (*TO_DECODE, DecodeAnswered(200), RelayDecode())
LOCAL = (ChooseEngines(False, NONE), EnginesChosen(None, "d0"), SendDecode("d0", None))

SCRIPTS = (
    script("both legs, then the answer", *TO_CLIENT, DecodeEnded()),
    script(
        "one engine serves it",
        *LOCAL,
        DecodeAnswered(200),
        RelayDecode(),
        DecodeEnded(),
        wants_prefill=False,
    ),
    script(
        "the policy has decode read the prompt: no fallback, so nothing is counted",
        ASK,
        EnginesChosen(None, "d0", is_local=True),
        SendDecode("d0", None),
        DecodeAnswered(200),
        RelayDecode(),
        DecodeEnded(),
        policy=STRICT,
    ),
    script(
        "chosen local, then retried: the policy may choose two engines now",
        ASK,
        EnginesChosen(None, "d0", is_local=True),
        SendDecode("d0", None),
        DecodeAnswered(503, has_other=True),
        Count("decode_retried"),
        ChooseEngines(True, avoiding("d0")),
        EnginesChosen("p0", "d1"),
        SendPrefill("p0"),
        ends=State.PREFILLING,
    ),
    script("nobody decodes", ASK, EnginesChosen("p0", None), Fail("no_decode", False)),
    # No prefill engine.
    script(
        "no prefill engine: decode reads the prompt, and that is counted",
        ASK,
        EnginesChosen(None, "d0"),
        Count("empty_prefill"),
        SendDecode("d0", None),
        DecodeAnswered(200),
        RelayDecode(),
        DecodeEnded(),
    ),
    script(
        "no prefill engine, and the operator wants an error",
        ASK,
        EnginesChosen(None, "d0"),
        Fail("no_prefill", False),
        policy=STRICT,
    ),
    script(
        "gone local, then unreachable: prefill is not tried again",
        ASK,
        EnginesChosen(None, "d0"),
        Count("empty_prefill"),
        SendDecode("d0", None),
        DecodeFailed("unreachable", was_sent=False, has_other=True),
        ChooseEngines(False, avoiding("d0")),
        EnginesChosen(None, "d1"),
        SendDecode("d1", None),
        DecodeAnswered(200),
        RelayDecode(),
        DecodeEnded(),
    ),
    # No handoff in prefill's answer.
    script(
        "no handoff: decode reads the prompt, and that is counted",
        *TO_PREFILL,
        PrefillReplied(None),
        Count("missing_handoff"),
        SendDecode("d0", None),
        DecodeAnswered(200),
        RelayDecode(),
        DecodeEnded(),
    ),
    script(
        "no handoff, then a decode engine that is down: prefill is not asked again",
        *TO_PREFILL,
        PrefillReplied(None),
        Count("missing_handoff"),
        SendDecode("d0", None),
        DecodeFailed("unreachable", was_sent=False, has_other=True),
        ChooseEngines(False, avoiding("d0")),
        EnginesChosen(None, "d1"),
        SendDecode("d1", None),
        ends=State.DECODING,
    ),
    script(
        "no handoff, and the operator wants an error",
        *TO_PREFILL,
        PrefillReplied(None),
        Count("missing_handoff"),
        Fail("missing_handoff", False),
        policy=STRICT,
    ),
    # Prefill refuses.
    *(
        script(
            f"prefill says {status}: the client gets it, decode is never asked",
            *TO_PREFILL,
            PrefillRefused(status, has_other=True),
            PassRefusal(),
            policy=LENIENT,
        )
        for status in (400, 401, 404, 408, 413, 422, 429, 499, 500)
    ),
    *(
        script(
            f"prefill says {status}: once more elsewhere, and no third time",
            *TO_PREFILL,
            PrefillRefused(status, has_other=True),
            Count("prefill_retried"),
            ChooseEngines(True, avoiding("p0")),
            EnginesChosen("p1", "d0"),
            SendPrefill("p1"),
            PrefillRefused(status, has_other=True),
            PassRefusal(),
        )
        for status in (502, 503, 504)
    ),
    script(
        "prefill says 503 and there is no other",
        *TO_PREFILL,
        PrefillRefused(503, has_other=False),
        PassRefusal(),
    ),
    script(
        "prefill says 503, no other, and the operator lets decode read",
        *TO_PREFILL,
        PrefillRefused(503, has_other=False),
        Count("prefill_failed_local"),
        SendDecode("d0", None),
        DecodeFailed("unreachable", was_sent=False, has_other=True),
        ChooseEngines(False, avoiding("d0")),
        ends=State.CHOOSING,
        policy=LENIENT,
    ),
    # Prefill fails below HTTP.
    script(
        "prefill resets: once more elsewhere, and no third time",
        *TO_PREFILL,
        PrefillFailed("reset", was_sent=True, has_other=True),
        Count("prefill_retried"),
        ChooseEngines(True, avoiding("p0")),
        EnginesChosen("p1", "d0"),
        SendPrefill("p1"),
        PrefillFailed("timeout", was_sent=True, has_other=True),
        Fail("leg", True),
    ),
    script(
        "prefill is silent and there is no other",
        *TO_PREFILL,
        PrefillFailed("timeout", was_sent=True, has_other=False),
        Fail("leg", False),
    ),
    script(
        "prefill resets, no other, and the operator lets decode read",
        *TO_PREFILL,
        PrefillFailed("reset", was_sent=True, has_other=False),
        Count("prefill_failed_local"),
        SendDecode("d0", None),
        DecodeFailed("unreachable", was_sent=False, has_other=True),
        ChooseEngines(False, avoiding("d0")),
        ends=State.CHOOSING,
        policy=LENIENT,
    ),
    script(
        "prefill cannot be reached: another one, and the retry is still there",
        *TO_PREFILL,
        PrefillFailed("unreachable", was_sent=False, has_other=True),
        ChooseEngines(True, avoiding("p0")),
        EnginesChosen("p1", "d0"),
        SendPrefill("p1"),
        PrefillFailed("reset", was_sent=True, has_other=True),
        Count("prefill_retried"),
        ChooseEngines(True, avoiding("p0", "p1")),
        EnginesChosen("p2", "d0"),
        SendPrefill("p2"),
        ends=State.PREFILLING,
    ),
    script(
        "no prefill engine can be reached: as good as none",
        *TO_PREFILL,
        PrefillFailed("unreachable", was_sent=False, has_other=False),
        ChooseEngines(True, avoiding("p0")),
        EnginesChosen(None, "d0"),
        Count("empty_prefill"),
        SendDecode("d0", None),
        ends=State.DECODING,
    ),
    script(
        "connections that fail are bounded",
        ASK,
        *(
            line
            for number in range(MAX_UNREACHABLE)
            for line in (
                EnginesChosen(f"p{number}", "d0"),
                SendPrefill(f"p{number}"),
                PrefillFailed("unreachable", was_sent=False, has_other=True),
                ChooseEngines(True, avoiding(*(f"p{past}" for past in range(number + 1)))),
            )
        ),
        EnginesChosen("p9", "d0"),
        SendPrefill("p9"),
        PrefillFailed("unreachable", was_sent=False, has_other=True),
        Fail("leg", False),
    ),
    # Decode refuses.
    *(
        script(
            f"decode says {status}: the client gets it, and the handoff is spent",
            *TO_DECODE,
            DecodeAnswered(status, has_other=True),
            RelayDecode(),
            DecodeEnded(),
        )
        for status in (400, 401, 404, 408, 422, 429, 501)
    ),
    *(
        script(
            f"decode says {status}: a fresh prefill, another engine, no third time",
            *TO_DECODE,
            DecodeAnswered(status, has_other=True),
            Count("decode_retried"),
            ChooseEngines(True, avoiding("d0")),
            EnginesChosen("p0", "d1"),
            SendPrefill("p0"),
            PrefillReplied(H2),
            SendDecode("d1", H2),
            DecodeAnswered(status, has_other=True),
            RelayDecode(),
            DecodeEnded(),
        )
        for status in (500, 502, 503, 504)
    ),
    script(
        "decode refuses unread what came without a handoff: nothing to release",
        *LOCAL,
        DecodeAnswered(422, has_other=True, is_untouched=True),
        RelayDecode(),
        DecodeEnded(),
        wants_prefill=False,
    ),
    script(
        "decode says 503 and there is no other",
        *TO_DECODE,
        DecodeAnswered(503, has_other=False),
        RelayDecode(),
        DecodeEnded(),
    ),
    script(
        "decode says 503 to a request that one engine serves",
        *LOCAL,
        DecodeAnswered(503, has_other=True),
        Count("decode_retried"),
        ChooseEngines(False, avoiding("d0")),
        EnginesChosen(None, "d1"),
        SendDecode("d1", None),
        ends=State.DECODING,
        wants_prefill=False,
    ),
    script(
        "prefill had the retry: decode gets none",
        *TO_PREFILL,
        PrefillRefused(503, has_other=True),
        Count("prefill_retried"),
        ChooseEngines(True, avoiding("p0")),
        EnginesChosen("p1", "d0"),
        SendPrefill("p1"),
        PrefillReplied(H),
        SendDecode("d0", H),
        DecodeAnswered(503, has_other=True),
        RelayDecode(),
        DecodeEnded(),
    ),
    script(
        "decode refuses the request unread: the handoff is released, the refusal passed on",
        *TO_DECODE,
        DecodeAnswered(400, has_other=True, is_untouched=True),
        Release(H),
        RelayDecode(),
        DecodeEnded(),
    ),
    script(
        "decode refuses the request unread, the client leaves: released once",
        *TO_DECODE,
        DecodeAnswered(422, is_untouched=True),
        Release(H),
        RelayDecode(),
        ClientGone(was_sent=True),
        CloseDecode(),
    ),
    # Decode fails below HTTP, the client without a byte.
    script(
        "decode resets: a fresh prefill, another engine, no third time",
        *TO_DECODE,
        DecodeFailed("reset", was_sent=True, has_other=True),
        Count("decode_retried"),
        ChooseEngines(True, avoiding("d0")),
        EnginesChosen("p0", "d1"),
        SendPrefill("p0"),
        PrefillReplied(H2),
        SendDecode("d1", H2),
        DecodeFailed("timeout", was_sent=True, has_other=True),
        Fail("leg", True),
    ),
    script(
        "decode resets and there is no other: the handoff is spent",
        *TO_DECODE,
        DecodeFailed("reset", was_sent=True, has_other=False),
        Fail("leg", False),
    ),
    script(
        "decode cannot be reached: the same handoff elsewhere, the retry still there",
        *TO_DECODE,
        DecodeFailed("unreachable", was_sent=False, has_other=True),
        Count("handoff_presented_again"),
        ChooseEngines(False, avoiding("d0")),
        EnginesChosen(None, "d1"),
        SendDecode("d1", H),
        DecodeFailed("reset", was_sent=True, has_other=True),
        Count("decode_retried"),
        ChooseEngines(True, avoiding("d0", "d1")),
        ends=State.CHOOSING,
    ),
    script(
        "decode cannot be reached and there is no other: release",
        *TO_DECODE,
        DecodeFailed("unreachable", was_sent=False, has_other=False),
        Release(H),
        Fail("leg", False),
    ),
    script(
        "decode cannot be reached, and the other vanished: release",
        *TO_DECODE,
        DecodeFailed("unreachable", was_sent=False, has_other=True),
        Count("handoff_presented_again"),
        ChooseEngines(False, avoiding("d0")),
        EnginesChosen(None, None),
        Release(H),
        Fail("no_decode", False),
    ),
    script(
        "decode's connections that fail are bounded: release",
        *TO_DECODE,
        *(
            line
            for number in range(MAX_UNREACHABLE)
            for line in (
                DecodeFailed("unreachable", was_sent=False, has_other=True),
                Count("handoff_presented_again"),
                ChooseEngines(False, avoiding(*(f"d{past}" for past in range(number + 1)))),
                EnginesChosen(None, f"d{number + 1}"),
                SendDecode(f"d{number + 1}", H),
            )
        ),
        DecodeFailed("unreachable", was_sent=False, has_other=True),
        Release(H),
        Fail("leg", False),
    ),
    script(
        "no handoff to present again, none counted",
        *LOCAL,
        DecodeFailed("unreachable", was_sent=False, has_other=True),
        ChooseEngines(False, avoiding("d0")),
        ends=State.CHOOSING,
        wants_prefill=False,
    ),
    # The client has bytes.
    script(
        "decode dies in the middle: no retry, the API's own end",
        *TO_CLIENT,
        DecodeFailed("reset", was_sent=True, has_other=True),
        EndStream(),
    ),
    # The client goes.
    script(
        "client gone in prefill, which had answered: release",
        *TO_PREFILL,
        ClientGone(was_sent=True),
        AbandonPrefill(),
        PrefillReplied(H),
        Release(H),
    ),
    script(
        "client gone in prefill, which answers without a handoff",
        *TO_PREFILL,
        ClientGone(was_sent=True),
        AbandonPrefill(),
        PrefillReplied(None),
    ),
    script(
        "client gone in prefill, which refuses: nobody left to retry for",
        *TO_PREFILL,
        ClientGone(was_sent=True),
        AbandonPrefill(),
        PrefillRefused(503, has_other=True),
    ),
    script(
        "client gone in prefill, whose connection ends",
        *TO_PREFILL,
        ClientGone(was_sent=False),
        AbandonPrefill(),
        PrefillFailed("reset", was_sent=True, has_other=True),
    ),
    script(
        "client gone before decode had a byte: release",
        *TO_DECODE,
        ClientGone(was_sent=False),
        CloseDecode(),
        Release(H),
    ),
    script(
        "client gone after decode had the request: decode releases",
        *TO_DECODE,
        ClientGone(was_sent=True),
        CloseDecode(),
    ),
    script("client gone in the stream", *TO_CLIENT, ClientGone(was_sent=True), CloseDecode()),
)


@pytest.mark.parametrize("one", SCRIPTS, ids=lambda one: one.name)
def test_script(one: Script) -> None:
    play(one)


def test_names_are_unique() -> None:
    assert len({one.name for one in SCRIPTS}) == len(SCRIPTS)


def test_failure_shows_both_scripts() -> None:
    wrong = script("a wrong one", ASK, EnginesChosen("p0", "d0"), SendPrefill("p1"))
    with pytest.raises(AssertionError) as caught:
        play(wrong)
    text = str(caught.value)
    assert "a wrong one" in text
    assert "expected" in text
    assert ">> EnginesChosen(prefill='p0', decode='d0', is_local=False)" in text
    differing = [line for line in text.splitlines() if line.startswith("->")]
    assert "SendPrefill(engine='p1')" in differing[0]
    assert "SendPrefill(engine='p0')" in differing[0]


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.CHOOSING, DecodeEnded()),
        (State.PREFILLING, DecodeAnswered(200)),
        (State.ABANDONING, ClientGone(True)),
        (State.DECODING, PrefillReplied(H)),
        (State.RELAYING, DecodeAnswered(200)),
        (State.DONE, ClientGone(True)),
        (State.DONE, DecodeEnded()),
    ],
)
def test_impossible_events_are_refused(state: State, event: Event) -> None:
    request = Handoff(HandoffPolicy(), True, state=state)
    with pytest.raises(AssertionError, match=f"cannot happen while {state}"):
        request.handle(event)


def test_done_is_final() -> None:
    assert not [key for key in TABLE if key[0] is State.DONE]


def test_last_row_of_each_event_is_unconditional() -> None:
    assert [key for key, rows in TABLE.items() if rows[-1][0] is not machine.always] == []


# A test of the tests: each row broken once, in each of these ways, turns a script red.


def _inverted(guard: machine.Guard) -> machine.Guard:
    return lambda request, event: not guard(request, event)


def _mutants(key: tuple[State, type]) -> Iterator[tuple[str, tuple[Row, ...]]]:
    rows = TABLE[key]
    for index, (guard, actions, target) in enumerate(rows):
        name = f"row {index}"

        def replaced(*row: Row, at: int = index) -> tuple[Row, ...]:
            return (*rows[:at], *row, *rows[at + 1 :])

        yield f"{name} removed", replaced()
        yield f"{name}, guard inverted", replaced((_inverted(guard), actions, target))
        if guard is not machine.always:
            yield f"{name}, guard dropped", replaced((machine.always, actions, target))
        for other in State:
            if other is not target:
                yield f"{name} to {other}", replaced((guard, actions, other))
        for at in range(len(actions)):
            fewer = (*actions[:at], *actions[at + 1 :])
            yield f"{name} without action {at}", replaced((guard, fewer, target))


@pytest.mark.parametrize("key", TABLE, ids=lambda key: f"{key[0]}+{key[1].__name__}")
def test_broken_rows_are_noticed(monkeypatch: pytest.MonkeyPatch, key: tuple[State, type]) -> None:
    unnoticed = []
    for name, rows in _mutants(key):
        monkeypatch.setitem(TABLE, key, rows)
        if not any(_is_red(one) for one in SCRIPTS):
            unnoticed.append(name)
    assert unnoticed == []


def _is_red(one: Script) -> bool:
    try:
        play(one)
    except AssertionError:
        return True
    return False
