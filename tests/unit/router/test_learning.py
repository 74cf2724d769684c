"""What a request teaches: each lesson once a choice, and no timer left behind."""

import asyncio
from typing import Any

import msgspec
import pytest

from transload_router.app.choosing import make_ask
from transload_router.app.learning import Learning
from transload_router.app.relay import do_nothing
from transload_router.app.request import GenerateRequest, read_request
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import COMPLETIONS
from transload_router.core.index.approximate import Text
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.prompt import Prompt, pack_tokens
from transload_router.core.routing import Choice
from transload_router.settings import Settings

P0, D0 = ("prefill-0", 0), ("decode-0", 0)
IDS = list(range(100))
WHO = Identity("m")


@pytest.fixture
def router() -> Router:
    router = Router(Settings(prefill=["p:1"], decode=["d:1"], policy="least-loaded"))
    for key in (P0, D0):
        router.index.add_owner(key, "m", 0)
        router.set_stream(key, StreamState.EXACT)
    return router


def request(router: Router, *, is_known: bool = True, **body: Any) -> GenerateRequest:
    raw = msgspec.json.encode({"model": "m", "prompt": IDS, **body})
    asked = read_request(router, COMPLETIONS, "/x", [], raw, 0.0, do_nothing)
    if is_known:
        asked.prompt, asked.prompt_source = Prompt(WHO, pack_tokens(IDS)), "router"
        asked.num_prompt_tokens = len(IDS)
    return asked


def choose(router: Router, asked: GenerateRequest, *, may_split: bool = True) -> Choice:
    choice = router.choose(make_ask(router, asked, may_split=may_split), frozenset())
    assert choice is not None
    return choice


def begun(router: Router, asked: GenerateRequest, *, may_split: bool = True) -> Learning:
    learning = Learning(router, asked)
    learning.begin(choose(router, asked, may_split=may_split))
    return learning


def test_predicted_and_reported_are_counted_of_the_same_requests(router: Router) -> None:
    router.index.predict(P0, Prompt(WHO, pack_tokens(IDS)), 0.0, 1e9, 64)
    metrics = router.metrics
    for reported, outcome in ((64, "exact"), (32, "over"), (96, "under")):
        learning = begun(router, request(router))
        learning.note_cached(None)
        learning.note_cached(reported)
        learning.note_cached(7)
        assert learning.num_cached_tokens == reported
        assert metrics.predictions.value("events", outcome) == 1
    assert metrics.cached_tokens.value("predicted") == 3 * 64
    assert metrics.cached_tokens.value("reported") == 64 + 32 + 96


def test_nothing_is_counted_before_a_choice(router: Router) -> None:
    learning = Learning(router, request(router))
    learning.note_cached(5)
    learning.note_first_token()
    learning.note_end(5)
    learning.note_sent(has_handoff=True, is_stream=True)
    assert learning.num_cached_tokens is None
    assert router.metrics.cached_tokens.value("reported") == 0


@pytest.mark.parametrize(
    ("state", "num_known"), [(StreamState.EXACT, 0), (StreamState.DEGRADED, 64)]
)
def test_what_was_not_expected_is_believed_where_events_were_lost(
    router: Router, state: StreamState, num_known: int
) -> None:
    router.set_stream(P0, state)
    begun(router, request(router)).note_cached(64)
    match = router.index.match(Prompt(WHO, pack_tokens(IDS)))
    assert (match[P0].num_tokens if P0 in match else 0) == num_known
    assert D0 not in match


def test_a_stream_tells_in_one_of_its_events(router: Router) -> None:
    learning = begun(router, request(router), may_split=False)
    learning.note_events(b'data: {"choices":[]}\n\n')
    assert learning.num_cached_tokens is None
    usage = b'{"usage":{"prompt_tokens_details":{"cached_tokens":48}}}'
    learning.note_events(b'data: {"choices":[]}\n\ndata: %b\n\n' % usage)
    assert learning.num_cached_tokens == 48


def test_another_choice_is_another_lesson(router: Router) -> None:
    asked = request(router)
    learning = begun(router, asked)
    learning.note_cached(16)
    learning.begin(choose(router, asked))
    learning.note_cached(32)
    assert router.metrics.cached_tokens.value("reported") == 48
    # A handoff that goes elsewhere is still the same prefill's.
    ask = make_ask(router, asked, may_split=False, handoff_from=P0)
    choice = router.choose(ask, frozenset())
    assert choice is not None
    learning.begin(choice)
    learning.note_cached(99)
    assert learning.num_cached_tokens == 32


@pytest.mark.parametrize(
    ("is_known", "state", "basis"),
    [
        (True, StreamState.EXACT, "events"),
        (True, StreamState.DEGRADED, "events"),
        (True, StreamState.REPLAYING, "text"),
        (True, StreamState.COLD, "text"),
        (False, StreamState.EXACT, "text"),
    ],
)
def test_basis(router: Router, is_known: bool, state: StreamState, basis: str) -> None:
    router.set_stream(P0, state)
    assert begun(router, request(router, is_known=is_known)).basis == basis


@pytest.mark.parametrize(
    ("state", "num_others", "cause"),
    [
        (StreamState.EXACT, 0, "unexplained"),
        (StreamState.EXACT, 1, "concurrent"),
        (StreamState.DEGRADED, 0, "part_unknown"),
        (StreamState.COLD, 0, "estimated"),
    ],
)
def test_causes(router: Router, state: StreamState, num_others: int, cause: str) -> None:
    router.set_stream(P0, state)
    for _ in range(num_others):
        choose(router, request(router))
    begun(router, request(router)).note_cached(16)
    assert router.metrics.prediction_errors.value(cause) == 16


def test_whoever_came_later_may_have_been_served_first(router: Router) -> None:
    learning = begun(router, request(router))
    choose(router, request(router))
    learning.note_cached(16)
    assert router.metrics.prediction_errors.value("concurrent") == 16


@pytest.mark.parametrize(
    ("source", "is_lesson"),
    [
        ("no_tokenizer", True),
        ("busy", True),
        ("media", False),
        ("client", False),
        ("embeds", False),
    ],
)
def test_only_texts_without_ids_teach_their_length(
    router: Router, source: str, is_lesson: bool
) -> None:
    asked = request(router, is_known=False)
    asked.prompt_source, asked.text = source, Text(WHO, b"x" * 1000)
    learning = begun(router, asked)
    before = router.texts.bytes_per_token
    learning.note_length(None)
    learning.note_length(100)
    assert (router.texts.bytes_per_token > before) is is_lesson


async def test_an_answer_in_one_piece_decodes_once_its_first_token_is_due(router: Router) -> None:
    asked = request(router)
    choice = choose(router, asked)
    learning = Learning(router, asked)
    learning.begin(choice)
    learning.note_sent(has_handoff=True, is_stream=False)
    load = choice.decode.load
    assert load is not None
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert load.num_decoding == 1
    assert router.index.match(Prompt(WHO, pack_tokens(IDS)))[D0].is_predicted
    learning.close()
    choice.release()
    assert load.num_decoding == 0


@pytest.mark.parametrize("how", ["close", "end", "begin"])
async def test_timers_end_with_their_choice(router: Router, how: str) -> None:
    asked = request(router)
    learning = begun(router, asked, may_split=False)
    learning.note_sent(has_handoff=False, is_stream=False)
    timer = learning._timer
    assert timer is not None
    if how == "close":
        learning.close()
    elif how == "end":
        learning.note_end(5)
    else:
        learning.begin(choose(router, asked, may_split=False))
    assert timer.cancelled()


async def test_a_stream_needs_no_timer(router: Router) -> None:
    learning = begun(router, request(router), may_split=False)
    learning.note_sent(has_handoff=False, is_stream=True)
    assert learning._timer is None
    learning.note_first_token()
    learning.note_end(9)
    assert router.routing.accuracy.num_measured == 1
