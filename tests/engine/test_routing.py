"""The router knows what each engine's cache holds: its predictions are the engines' own figures."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.conversations import RESET_EVERY, Conversations, converse
from engine.routing_world import (
    BLOCK_TOKENS,
    MAX_MODEL_LEN,
    Answer,
    Fleet,
    ask,
    assert_exact,
    num_events,
    wait_followed,
)
from engine.world import token_ids
from real_engine.launch import scrape
from real_engine.router import RouterProcess

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

NUM_REQUESTS = 200
NUM_AT_ONCE = 6

JUDGED = "transload_cache_predictions_total"
ERRORS = "transload_cached_tokens_error_total"
"""Requests whose prediction was compared with the engine's report; tokens between the two."""

CONCURRENT = f'{ERRORS}{{cause="concurrent"}}'
UNEXPLAINED = f'{ERRORS}{{cause="unexplained"}}'


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_conversation_goes_where_its_prefix_is(
    fleet: Fleet, client: httpx.Client, tmp_path: Path, is_stream: bool
) -> None:
    """By `prefix`: after a handoff decode holds the prompt too, and cost may well choose it."""
    with fleet.router(tmp_path / "log", "--policy", "prefix") as router:
        for number in range(6):
            prompt = token_ids(200, f"conversation {number} {is_stream}")
            first = _ask(client, fleet, router, prompt, is_stream)
            longer = prompt + first.token_ids + token_ids(50, number)
            second = _ask(client, fleet, router, longer, is_stream)
            assert second.computed_by == first.computed_by
            assert second.num_cached_tokens >= 200 // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.parametrize("policy", ["cost", "prefix"])
def test_predictions_are_exact_for_one_request_after_another(
    fleet: Fleet, client: httpx.Client, tmp_path: Path, policy: str
) -> None:
    """By cost, decode computes nearly all of these short prompts itself; `prefix` always splits.

    Nobody tells the router where the tokenizer is.
    """
    before = num_events(fleet)
    with fleet.router(tmp_path / "log", "--policy", policy) as router:
        answers = converse(client, fleet, router, NUM_REQUESTS, seed=policy)
        judged = scrape(router.url)
    assert_exact(answers)
    assert judged['transload_cache_predictions_total{basis="events",outcome="exact"}'] == len(
        answers
    )
    assert sum(answer.num_cached_tokens > 0 for answer in answers) > NUM_REQUESTS // 5
    if policy == "prefix":
        assert {answer.prefill for answer in answers} == {"prefill-0", "prefill-1"}
    happened = num_events(fleet) - before
    assert happened["BlockRemoved"] > NUM_REQUESTS
    assert happened["AllBlocksCleared"] >= NUM_REQUESTS // RESET_EVERY


def test_a_block_that_is_held_twice_outlives_its_first_copy(
    fleet: Fleet, client: httpx.Client, tmp_path: Path
) -> None:
    """A prompt of whole blocks computes its last one again, beside the copy that is there."""
    prompt = token_ids(2 * BLOCK_TOKENS, "twice")
    with fleet.router(tmp_path / "log", "--policy", "prefix") as router:
        fleet.compute("prefill-0", prompt)
        fleet.compute("prefill-0", token_ids(4 * BLOCK_TOKENS, "between"))
        fleet.compute("prefill-0", prompt)
        fleet.compute("prefill-0", token_ids(9 * BLOCK_TOKENS, "evicts the first copy"))
        answer = _ask(client, fleet, router, [*prompt, 99])
    assert answer.computed_by == "prefill-0"
    assert answer.num_cached_tokens == 2 * BLOCK_TOKENS
    assert_exact([answer])


def test_an_engine_told_to_report_hits_does_not_mislead(
    fleet: Fleet, client: httpx.Client, tmp_path: Path
) -> None:
    """Clients can ask vLLM to announce blocks again that it holds once."""
    prompt = token_ids(100, "reported")
    body = {"prompt": prompt, "max_tokens": 1, "vllm_xargs": {"kv_cache_report_mode": "full"}}
    with fleet.router(tmp_path / "log", "--policy", "prefix") as router:
        _ask(client, fleet, router, prompt)
        assert ask(client, router.url, body, is_stream=False).num_cached_tokens == 96
        for engine_id in fleet.by_id:
            fleet.compute(engine_id, token_ids(MAX_MODEL_LEN - 1, "evicts all"))
        answer = _ask(client, fleet, router, prompt)
    assert answer.num_cached_tokens == 0
    assert_exact([answer])


@pytest.mark.parametrize("policy", ["cost", "prefix"])
def test_errors_of_concurrent_requests_are_told_and_do_not_last(
    fleet: Fleet, client: httpx.Client, tmp_path: Path, policy: str
) -> None:
    with fleet.router(tmp_path / "log", "--policy", policy) as router:
        before = scrape(router.url)
        answers = _converse_at_once(client, router, NUM_REQUESTS // NUM_AT_ONCE)
        after = scrape(router.url)
        assert after[JUDGED] - before.get(JUDGED, 0) == len(answers)
        told = after.get(ERRORS, 0) - before.get(ERRORS, 0)
        assert told == sum(abs(answer.error) for answer in answers)
        # Who is there neither at the choice nor at the answer is not seen: a few.
        assert told - after.get(CONCURRENT, 0) <= told / 10
        assert_exact(converse(client, fleet, router, 30, seed="afterwards"))


@pytest.mark.parametrize(
    "engine_id",
    [pytest.param("prefill-0", id="elsewhere"), pytest.param("prefill-1", id="same-place")],
)
def test_an_engine_that_started_again_is_learned_anew(
    fleet: Fleet, client: httpx.Client, tmp_path: Path, engine_id: str
) -> None:
    """Whether its publisher is to be found at other endpoints then, or at the same."""
    prompt, lost = (token_ids(150, f"{name} {engine_id}") for name in ("asked", "lost"))
    with fleet.router(tmp_path / "log", "--policy", "prefix") as router:
        fleet.compute(engine_id, lost)
        fleet.compute(engine_id, prompt)
        before = _ask(client, fleet, router, prompt)
        assert (before.computed_by, before.num_cached_tokens) == (engine_id, 128)
        fleet.stop(engine_id)
        meanwhile = ask(client, router.url, {"prompt": prompt, "max_tokens": 4}, is_stream=False)
        assert meanwhile.computed_by != engine_id
        fleet.start_again(engine_id)
        router.wait_ready()
        fleet.compute(engine_id, token_ids(64, "its first sequence"))
        after = _ask(client, fleet, router, lost)
        answers = converse(client, fleet, router, 60, seed="after the restart")
    assert after.num_cached_tokens == 0
    assert_exact([before, after, *answers])
    assert engine_id in {answer.computed_by for answer in answers}


def test_a_reset_behind_the_routers_back_costs_one_prediction(
    fleet: Fleet, client: httpx.Client, tmp_path: Path
) -> None:
    """An engine announces a reset with its next step, which the next request is."""
    prompt = token_ids(200, "reset")
    with fleet.router(tmp_path / "log", "--policy", "prefix") as router:
        first = _ask(client, fleet, router, prompt)
        assert fleet.reset_silently(first.computed_by)
        wrong = _ask(client, fleet, router, prompt)
        told = scrape(router.url)
        answers = [_ask(client, fleet, router, prompt) for _ in range(2)]
    assert (wrong.computed_by, wrong.error) == (first.computed_by, 192)
    assert told[UNEXPLAINED] == told[ERRORS] == 192
    assert [answer.num_cached_tokens for answer in answers] == [192, 192]
    assert_exact([first, *answers])


def test_a_reset_through_the_router_costs_none(
    fleet: Fleet, client: httpx.Client, tmp_path: Path
) -> None:
    prompt = token_ids(200, "reset by the router")
    with fleet.router(tmp_path / "log", "--policy", "prefix") as router:
        answers = [_ask(client, fleet, router, prompt) for _ in range(2)]
        done = client.post(f"{router.url}/admin/reset_prefix_cache").raise_for_status().json()
        answers += [_ask(client, fleet, router, prompt) for _ in range(2)]
    assert done == dict.fromkeys(fleet.by_id, True)
    assert [answer.num_cached_tokens for answer in answers] == [0, 192, 0, 192]
    assert_exact(answers)


def _ask(
    client: httpx.Client,
    fleet: Fleet,
    router: RouterProcess,
    prompt: list[int],
    is_stream: bool = False,
) -> Answer:
    wait_followed(fleet, router)
    return ask(client, router.url, {"prompt": prompt, "max_tokens": 8}, is_stream=is_stream)


def _converse_at_once(
    client: httpx.Client, router: RouterProcess, num_requests: int
) -> list[Answer]:
    """Several clients, each with one request after another, all of the same conversations."""

    def converse(number: int) -> list[Answer]:
        source = random.Random(number)
        conversations = Conversations("shared")
        answers = []
        for _ in range(num_requests):
            body = conversations.next_body(has_text=False)
            answers.append(ask(client, router.url, body, is_stream=source.random() < 0.5))
            conversations.answered(answers[-1])
        return answers

    with ThreadPoolExecutor(NUM_AT_ONCE) as threads:
        return [answer for part in threads.map(converse, range(NUM_AT_ONCE)) for answer in part]
