"""What a policy is told: exact hits where events are followed, texts elsewhere, never both."""

from typing import Any

import msgspec
import pytest

from transload_router.app.choosing import (
    AFFINITY_TOKENS,
    EXPECT_BEYOND_S,
    MAX_EXPECT_S,
    expect_blocks,
    make_ask,
)
from transload_router.app.relay import do_nothing
from transload_router.app.request import GenerateRequest, read_request
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import COMPLETIONS
from transload_router.core.index.approximate import Text
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.policy import Decision, Destination, Reason, Terms
from transload_router.core.prompt import Prompt, pack_tokens
from transload_router.core.routing import Choice
from transload_router.settings import Settings

FOLLOWED, UNTOLD, DECODE = ("prefill-0", 0), ("prefill-1", 0), ("decode-0", 0)
WHO = Identity("m")
IDS = list(range(2000))
TEXT = b"the mill by the bridge " * 40


@pytest.fixture
def router() -> Router:
    router = Router(Settings(prefill=["p:1", "p:2"], decode=["d:1"]))
    router.index.add_owner(FOLLOWED, "m", 0)
    router.set_stream(FOLLOWED, StreamState.EXACT)
    return router


def request(router: Router, *, has_ids: bool, has_text: bool, **body: Any) -> GenerateRequest:
    raw = msgspec.json.encode({"model": "m", "prompt": "x", "max_tokens": 9, **body})
    headers = [(b"x-session-id", b"s1")]
    asked = read_request(router, COMPLETIONS, "/x", headers, raw, 0.0, do_nothing)
    asked.prompt = Prompt(WHO, pack_tokens(IDS)) if has_ids else None
    asked.text = Text(WHO, TEXT) if has_text else None
    return asked


def destination(router: Router, name: str) -> Destination:
    return Destination(router.fleet.engine(name))


def choice(router: Router, seconds: float = 0.0) -> Choice:
    to = destination(router, "decode-0")
    terms = Terms(first_token_s=seconds)
    return Choice(
        Decision(None, to, Reason.SPLIT, terms), None, router.load.reserve(to.engine, 1), 0.0
    )


def test_facts_of_the_request(router: Router) -> None:
    asked = request(router, has_ids=True, has_text=False)
    ask = make_ask(router, asked, may_split=True, handoff_from=FOLLOWED)
    assert (ask.model, ask.session, ask.num_answer_tokens) == ("m", "s1", 9)
    assert (ask.may_split, ask.handoff_from, ask.is_exact) == (True, FOLLOWED, True)
    assert ask.match == {}
    unknown = make_ask(router, request(router, has_ids=False, has_text=True), may_split=False)
    assert (unknown.may_split, unknown.is_exact) == (False, False)


def test_followed_caches_are_known_by_events_alone(router: Router) -> None:
    router.texts.predict(FOLLOWED, Text(WHO, TEXT))
    asked = request(router, has_ids=True, has_text=True)
    assert make_ask(router, asked, may_split=True).match == {}
    router.index.predict(FOLLOWED, Prompt(WHO, pack_tokens(IDS)), 0.0, 1e9, 64)
    hit = make_ask(router, asked, may_split=True).match[FOLLOWED]
    assert (hit.num_tokens, hit.is_exact) == (64, True)


@pytest.mark.parametrize(("logprobs", "num_tokens"), [(None, 64), (1, 0)])
def test_who_reads_no_cache_is_promised_none(
    router: Router, logprobs: int | None, num_tokens: int
) -> None:
    router.index.predict(FOLLOWED, Prompt(WHO, pack_tokens(IDS)), 0.0, 1e9, 64)
    asked = request(router, has_ids=True, has_text=True, prompt_logprobs=logprobs)
    match = make_ask(router, asked, may_split=False).match
    assert sum(hit.num_tokens for hit in match.values()) == num_tokens


def test_others_by_text_and_all_of_them_where_ids_are_unknown(router: Router) -> None:
    for key in (FOLLOWED, UNTOLD):
        router.texts.predict(key, Text(WHO, TEXT))
    both = make_ask(router, request(router, has_ids=True, has_text=True), may_split=True)
    assert set(both.match) == {UNTOLD}
    assert not both.match[UNTOLD].is_exact
    text = make_ask(router, request(router, has_ids=False, has_text=True), may_split=True)
    assert set(text.match) == {FOLLOWED, UNTOLD}
    neither = make_ask(router, request(router, has_ids=False, has_text=False), may_split=True)
    assert neither.match == {}
    assert neither.affinity is None


@pytest.mark.parametrize("state", [StreamState.COLD, StreamState.REPLAYING])
def test_a_stream_that_is_not_there_yet_is_not_believed(router: Router, state: StreamState) -> None:
    router.set_stream(FOLLOWED, state)
    router.texts.predict(FOLLOWED, Text(WHO, TEXT))
    asked = request(router, has_ids=True, has_text=True)
    assert not make_ask(router, asked, may_split=True).match[FOLLOWED].is_exact


def test_siblings_have_one_affinity_and_strangers_another(router: Router) -> None:
    router.index.predict(FOLLOWED, Prompt(WHO, pack_tokens([7] * 64)), 0.0, 1e9)

    def affinity(ids: list[int]) -> int | None:
        asked = request(router, has_ids=True, has_text=False)
        asked.prompt = Prompt(WHO, pack_tokens(ids))
        return make_ask(router, asked, may_split=True).affinity

    assert affinity(IDS) == affinity([*IDS[:AFFINITY_TOKENS], *range(50, 500)])
    assert affinity(IDS) != affinity([1, *IDS])
    assert affinity([1, 2, 3]) is None
    assert affinity(IDS[:40]) is not None


def test_texts_have_an_affinity_of_their_own(router: Router) -> None:
    first = make_ask(router, request(router, has_ids=False, has_text=True), may_split=True)
    assert first.affinity is not None
    asked = request(router, has_ids=False, has_text=False)
    asked.text = Text(WHO, TEXT + b"and so on, and so forth")
    assert make_ask(router, asked, may_split=True).affinity == first.affinity


@pytest.mark.parametrize(
    ("first_token_s", "until_s"),
    [(0.0, EXPECT_BEYOND_S), (7.0, 7.0 + EXPECT_BEYOND_S), (1e9, MAX_EXPECT_S)],
)
def test_blocks_are_expected_for_a_while(
    router: Router, monkeypatch: pytest.MonkeyPatch, first_token_s: float, until_s: float
) -> None:
    monkeypatch.setattr("transload_router.app.choosing.monotonic", lambda: 1000.0)
    asked = request(router, has_ids=True, has_text=True)
    to = destination(router, "prefill-0")
    expect_blocks(router, asked, to, choice(router, first_token_s))
    prompt = Prompt(WHO, pack_tokens(IDS))
    assert router.index.match(prompt)[FOLLOWED].is_predicted
    assert FOLLOWED in router.texts.match(Text(WHO, TEXT))
    router.index.expire(1000.0 + until_s - 0.001)
    assert FOLLOWED in router.index.match(prompt)
    router.index.expire(1000.0 + until_s)
    assert FOLLOWED not in router.index.match(prompt)


def test_nothing_is_expected_of_what_is_unknown(router: Router) -> None:
    asked = request(router, has_ids=False, has_text=False)
    expect_blocks(router, asked, destination(router, "prefill-0"), choice(router))
    assert (router.index.num_predictions, router.texts.num_chunks) == (0, 0)
    # One whose events are not followed has no expectations either.
    asked = request(router, has_ids=True, has_text=False)
    expect_blocks(router, asked, destination(router, "decode-0"), choice(router))
    assert router.index.num_predictions == 0
