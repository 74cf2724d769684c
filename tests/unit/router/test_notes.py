"""What answers' headers say of the router's doing: valid values, and only where asked for."""

import logging
import re
from typing import Any

import msgspec
import pytest

from transload_router.app.headers import EXPLAIN
from transload_router.app.notes import Notes, log_decision, show_terms
from transload_router.app.relay import do_nothing
from transload_router.app.request import GenerateRequest, read_request
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import COMPLETIONS
from transload_router.core.policy import Decision, Destination, Reason, Terms
from transload_router.core.tokens.job import Reason as Unknown
from transload_router.core.types import Headers
from transload_router.settings import Settings

# RFC 9110, 5.5: visible characters, and blanks within.
VALUE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
FIGURES: dict[str, Any] = {
    name: float("inf") if name.endswith("_s") else 2**63 for name in Terms.__struct_fields__
}
ODD = Terms(**FIGURES)


def router() -> Router:
    return Router(Settings(prefill=["p:1"], decode=["d:1"]))


def request(router: Router, *headers: tuple[bytes, bytes], **body: Any) -> GenerateRequest:
    raw = msgspec.json.encode({"prompt": "x", **body})
    return read_request(router, COMPLETIONS, "/x", list(headers), raw, 0.0, do_nothing)


def decision(router: Router, reason: Reason, terms: Terms) -> Decision:
    prefill = Destination(router.fleet.engine("prefill-0"), 1, 2)
    return Decision(prefill, Destination(router.fleet.engine("decode-0")), reason, terms)


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("terms", [Terms(), ODD, Terms(prefill_s=-1e-9, total_s=1e30)])
def test_values_are_valid_whatever_the_figures(reason: Reason, terms: Terms) -> None:
    tables = router()
    asked = request(tables, (EXPLAIN, b"1"), model="naïve\n\N{SNOWMAN}")
    for source in ("client", "router", "engine", "unchecked", "unread", *Unknown):
        asked.prompt_source = str(source)
        notes = Notes(asked, prefill="prefill-0", decode="decode-0", num_cached_tokens=7)
        notes.prefill_seconds, notes.has_decoded = 1e9, True
        notes.decision = decision(tables, reason, terms)
        told = dict(notes.headers())
        assert told[b"x-transload-prompt"] == str(source).encode()
        assert told[b"x-transload-predicted-cached-tokens"] == b"%d" % terms.num_cached_tokens
        for name, value in told.items():
            # An empty value is one, too: no figure is above 0.
            assert value == b"" or VALUE.fullmatch(value), (name, value)


@pytest.mark.parametrize("headers", [[], [(EXPLAIN, b"0")], [(EXPLAIN, b"true")]])
def test_nothing_is_told_unasked(headers: Headers) -> None:
    tables = router()
    notes = Notes(request(tables, *headers), prefill="prefill-0", decode="decode-0")
    notes.decision = decision(tables, Reason.SPLIT, ODD)
    notes.num_cached_tokens, notes.has_decoded = 7, True
    assert notes.headers() == []
    notes.fallback, notes.is_missing = "missing_handoff", True
    assert notes.headers() == [
        (b"x-transload-handoff", b"missing"),
        (b"x-transload-fallback", b"missing_handoff"),
    ]


def test_reasons() -> None:
    tables = router()
    notes = Notes(request(tables))
    assert (notes.path, notes.reason) == ("unserved", "default")
    notes.has_decoded = True
    for reason, word in (
        (Reason.SPLIT, "default"),
        (Reason.LOCAL_CHEAPER, "local_cheaper"),
        (Reason.NO_PREFILL, "no_prefill"),
        (Reason.LOCAL_ONLY, "default"),
    ):
        notes.decision = decision(tables, reason, Terms())
        assert (notes.path, notes.reason) == ("local", word)
    notes.used_handoff = True
    assert notes.path == "disaggregated"
    notes.fallback = "missing_handoff"
    assert notes.reason == "missing_handoff"
    assert Notes(request(tables, n=2)).reason == "several_choices"


def test_figures_in_a_line() -> None:
    terms = Terms(num_cached_tokens=96, queue_s=0.25, total_s=1e-7)
    assert show_terms(terms) == "num_cached_tokens=96, queue_s=0.250000, total_s=0.000000"
    assert show_terms(Terms()) == ""


@pytest.mark.parametrize(
    ("share", "chance", "is_logged"),
    [(0.0, 0.0, False), (1.0, 0.999999, True), (0.5, 0.49, True), (0.5, 0.5, False)],
)
def test_a_share_of_decisions_is_logged(
    share: float, chance: float, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tables = router()
    notes = Notes(request(tables))
    settings = Settings(decode=["d:1"], decision_log_share=share)
    log_decision(settings, lambda: chance, notes)
    assert caplog.messages == [], "there is none yet"
    notes.decision = decision(tables, Reason.SPLIT, Terms(num_cached_tokens=5))
    log_decision(settings, lambda: chance, notes)
    assert caplog.messages == (
        [
            "decision: prefill=prefill-0/1 decode=decode-0 reason=split prompt=unread "
            f"tokens={notes.request.num_prompt_tokens} num_cached_tokens=5"
        ]
        if is_logged
        else []
    )
