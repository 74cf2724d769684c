"""Adapters: split where both legs have them, served by decode where prefill lacks them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from engine.adapter import RANK, write_adapter
from engine.routing_world import Answer, Fleet, ask, assert_exact, small, wait_followed
from engine.world import EXPLAIN, SPLITTING, token_ids
from real_engine.launch import MODEL_NAME, Engines, Role
from real_engine.router import RouterProcess

pytestmark = [pytest.mark.engine, pytest.mark.engine_full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def adapted(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One engine for each leg; of three adapters, both have the first, each has one of its own."""
    folder = tmp_path_factory.mktemp("adapters")
    paths = {
        name: write_adapter(folder / name, seed)
        for seed, name in enumerate(("both", "prefill-only", "decode-only"))
    }

    def with_adapters(*names: str) -> tuple[str, ...]:
        modules = [f"{name}={paths[name]}" for name in names]
        return ("--enable-lora", "--max-lora-rank", str(RANK), "--lora-modules", *modules)

    specs = [
        small("adapted-prefill", Role.PREFILL, with_adapters("both", "prefill-only")),
        small("adapted-decode", Role.DECODE, with_adapters("both", "decode-only")),
    ]
    fleet = Fleet(engines, specs)
    fleet.wait_ready()
    yield fleet
    for engine_id in fleet.by_id:
        fleet.stop(engine_id)


@pytest.fixture(scope="module")
def router(adapted: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with adapted.router(tmp_path_factory.mktemp("adapted") / "log", *SPLITTING) as router:
        yield router


@pytest.fixture(autouse=True)
def empty(adapted: Fleet) -> None:
    adapted.forget()


def test_base_and_adapter_share_no_block(
    adapted: Fleet, client: httpx.Client, router: RouterProcess
) -> None:
    prompt = token_ids(200, "base and adapter")
    order = (MODEL_NAME, "both", MODEL_NAME, "both")
    answers = [_ask(adapted, client, router, model, prompt) for model in order]
    assert [answer.num_cached_tokens for answer in answers] == [0, 0, 192, 192]
    assert {answer.prefill for answer in answers} == {"prefill-0"}
    assert_exact(answers)
    assert answers[0].token_ids == answers[2].token_ids
    assert answers[1].token_ids == answers[3].token_ids
    assert answers[0].token_ids != answers[1].token_ids


def test_salted_prompts_of_an_adapter_share_nothing_with_others(
    adapted: Fleet, client: httpx.Client, router: RouterProcess
) -> None:
    prompt = token_ids(200, "salt")
    salts = ("a", None, "a", None)
    answers = [_ask(adapted, client, router, "both", prompt, salt) for salt in salts]
    assert [answer.num_cached_tokens for answer in answers] == [0, 0, 192, 192]
    assert_exact(answers)


def test_an_adapters_chat_is_read_by_the_base_models_tokenizer(
    adapted: Fleet, client: httpx.Client, router: RouterProcess
) -> None:
    body = {
        "model": "both",
        "messages": [{"role": "user", "content": "def area(width, height): return 7\n" * 8}],
        "max_tokens": 8,
    }
    answers = []
    for _ in range(2):
        wait_followed(adapted, router)
        answers.append(ask(client, router.url, body, is_stream=False))
    assert answers[1].num_cached_tokens > 0
    assert_exact(answers)


def test_split_answers_are_those_of_one_engine(
    adapted: Fleet, client: httpx.Client, router: RouterProcess
) -> None:
    prompt = token_ids(300, "one engine")
    split = _ask(adapted, client, router, "both", prompt)
    adapted.forget()
    body = {"model": "both", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    asked = {**body, "ignore_eos": True, "return_token_ids": True}
    alone = client.post(f"{adapted.by_id['decode-0'].url}/v1/completions", json=asked).json()
    assert split.token_ids == alone["choices"][0]["token_ids"]


def test_an_adapter_that_prefill_lacks_is_served_by_decode(
    adapted: Fleet, client: httpx.Client, router: RouterProcess
) -> None:
    prompt = token_ids(200, "decode's own")
    answers = [_ask(adapted, client, router, "decode-only", prompt) for _ in range(2)]
    assert {(answer.prefill, answer.decode) for answer in answers} == {(None, "decode-0")}
    assert [answer.num_cached_tokens for answer in answers] == [0, 192]
    assert_exact(answers)


def test_an_adapter_that_decode_lacks_is_refused(
    adapted: Fleet, client: httpx.Client, router: RouterProcess
) -> None:
    before = adapted.published()
    body = {"model": "prefill-only", "prompt": token_ids(200, "no"), "max_tokens": 8}
    answer = client.post(f"{router.url}/v1/completions", json=body, headers=EXPLAIN)
    assert answer.status_code in (404, 503)
    assert "prefill-only" in answer.json()["error"]["message"]
    assert adapted.published() == before
    assert _ask(adapted, client, router, "both", token_ids(100, "and on")).prefill == "prefill-0"


def _ask(
    fleet: Fleet,
    client: httpx.Client,
    router: RouterProcess,
    model: str,
    prompt: list[int],
    salt: str | None = None,
) -> Answer:
    wait_followed(fleet, router)
    body = {"model": model, "prompt": prompt, "max_tokens": 8}
    if salt is not None:
        body["cache_salt"] = salt
    return ask(client, router.url, body, is_stream=False)
