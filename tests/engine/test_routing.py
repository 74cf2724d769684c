"""The router knows what each engine's cache holds: its predictions are the engines' own figures."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.conversations import Conversations
from engine.routing_world import (
    BLOCK_TOKENS,
    MAX_MODEL_LEN,
    Answer,
    Fleet,
    ask,
    num_events,
    wait_followed,
)
from engine.world import token_ids
from real_engine.launch import Engines, scrape
from real_engine.router import RouterProcess

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

NUM_REQUESTS = 200
RESET_EVERY = 25
NUM_AT_ONCE = 6

JUDGED = "transload_cache_predictions_total"
ERRORS = "transload_cached_tokens_error_total"
"""Requests whose prediction was compared with the engine's report; tokens between the two."""


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
def test_a_conversation_goes_where_its_prefix_is(
    fleet: Fleet, client: httpx.Client, tmp_path: Path, is_stream: bool
) -> None:
    with fleet.router(tmp_path / "log", "--policy", "prefix") as router:
        for number in range(6):
            prompt = token_ids(200, f"conversation {number} {is_stream}")
            first = _ask(client, fleet, router, prompt, is_stream)
            longer = prompt + first.token_ids + token_ids(50, number)
            second = _ask(client, fleet, router, longer, is_stream)
            assert second.computed_by == first.computed_by
            assert second.num_cached_tokens >= 200 // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.parametrize("policy", ["cost", "round-robin"])
def test_predictions_are_exact_for_one_request_after_another(
    fleet: Fleet, engines: Engines, client: httpx.Client, tmp_path: Path, policy: str
) -> None:
    options = ("--policy", policy, "--tokenizer", str(engines.model))
    before = num_events(fleet)
    with fleet.router(tmp_path / "log", *options) as router:
        answers = _converse(client, fleet, router, NUM_REQUESTS, seed=policy)
    _assert_exact(answers)
    assert sum(answer.num_cached_tokens > 0 for answer in answers) > NUM_REQUESTS // 4
    assert {answer.computed_by for answer in answers} >= {"prefill-0", "prefill-1"}
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
    _assert_exact([answer])


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
    _assert_exact([answer])


def test_errors_of_concurrent_requests_are_told_and_do_not_last(
    fleet: Fleet, client: httpx.Client, tmp_path: Path
) -> None:
    with fleet.router(tmp_path / "log") as router:
        before = scrape(router.url)
        answers = _converse_at_once(client, router, NUM_REQUESTS // NUM_AT_ONCE)
        after = scrape(router.url)
        assert after[JUDGED] - before.get(JUDGED, 0) == len(answers)
        told = after.get(ERRORS, 0) - before.get(ERRORS, 0)
        assert told == sum(abs(answer.error) for answer in answers)
        _assert_exact(_converse(client, fleet, router, 30, seed="afterwards"))


def test_an_engine_that_started_again_is_learned_anew(
    fleet: Fleet, client: httpx.Client, tmp_path: Path
) -> None:
    with fleet.router(tmp_path / "log", "--policy", "prefix") as router:
        prompt = token_ids(300, "before the restart")
        first = _ask(client, fleet, router, prompt)
        again = _ask(client, fleet, router, prompt)
        assert again.num_cached_tokens == 288
        assert again.computed_by == first.computed_by
        fleet.stop(first.computed_by)
        meanwhile = ask(client, router.url, {"prompt": prompt, "max_tokens": 4}, is_stream=False)
        assert meanwhile.computed_by != first.computed_by
        fleet.start_again(first.computed_by)
        router.wait_ready()
        _assert_exact(_converse(client, fleet, router, 60, seed="after the restart"))


def _ask(
    client: httpx.Client,
    fleet: Fleet,
    router: RouterProcess,
    prompt: list[int],
    is_stream: bool = False,
) -> Answer:
    wait_followed(fleet, router)
    return ask(client, router.url, {"prompt": prompt, "max_tokens": 8}, is_stream=is_stream)


def _converse(
    client: httpx.Client, fleet: Fleet, router: RouterProcess, num_requests: int, seed: str
) -> list[Answer]:
    """One request after another, with an engine's cache emptied now and then."""
    source = random.Random(seed)
    conversations = Conversations(seed)
    answers = []
    for number in range(num_requests):
        if number % RESET_EVERY == RESET_EVERY - 1:
            fleet.reset(source.choice(list(fleet.by_id)))
        wait_followed(fleet, router)
        body = conversations.next_body(has_text=True)
        answer = ask(client, router.url, body, is_stream=source.random() < 0.5)
        conversations.answered(answer)
        answers.append(answer)
    return answers


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


def _assert_exact(answers: list[Answer]) -> None:
    wrong = {number: answer for number, answer in enumerate(answers) if answer.error}
    assert wrong == {}, f"{len(wrong)} of {len(answers)} predictions are wrong"
