"""A model's engine among others, as it is served: handoffs in answers, loads, ends of both."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from support.model_server import PROMPT, ModelServer, serve_model
from support.recording_runner import answer
from support.router_server import Metrics
from support.waiting import soon, until
from transload_engine.core.handoff import Grant, Handoff
from transload_engine.core.scheduler import Load
from transload_engine.core.transfers import FailedLoad, Loaded, LoadProblem

HANDOFF = Handoff("p", "cmpl-1", "10.0.0.1", 7000, 3, 4, "lease", "p", "sha256:0")
PARAMS: dict[str, Any] = {
    "do_remote_prefill": True,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "p",
    "remote_request_id": "cmpl-1",
    "remote_host": "10.0.0.1",
    "remote_port": 7000,
    "remote_prefill_cached_tokens": 4,
    "transload": {"wire": "kvwire/1", "lease": "lease", "generation": "p", "prompt": "sha256:0"},
}
REFUSED = FailedLoad(LoadProblem.REFUSED, "open at 10.0.0.1:7000: refuse: no", "model.weights")


def fill(server: ModelServer, prompt: list[int] = PROMPT) -> None:
    """Loads bring what a prompt's blocks hold."""

    def bring(load: Load) -> Loaded:
        for at in range(load.num_local_tokens, load.num_tokens):
            slot = (load.block_ids[at // 4], at % 4)
            server.runner.slots[slot] = tuple(prompt[: at + 1])
        return Loaded(64, 0.5)

    server.transfer.outcome = bring


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serve_model(fails_with_load=False) as server:
        fill(server)
        yield server


def tokens(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return list(response.json()["choices"][0]["token_ids"])


async def prefill(server: ModelServer, **params: Any) -> dict[str, Any]:
    params = {"do_remote_decode": True, **params}
    told = await server.complete(max_tokens=1, kv_transfer_params=params)
    assert told.status_code == 200, told.text
    return dict(told.json()["kv_transfer_params"])


async def test_a_prefills_answer_says_where_its_blocks_are(server: ModelServer) -> None:
    told = await prefill(server, transload_readers=3)
    ((_, grant),) = server.transfer.log
    assert isinstance(grant, Grant)
    assert grant.num_readers == 3
    assert told == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3]],
        "remote_engine_id": server.transfer.generation,
        "remote_request_id": grant.handoff,
        "remote_host": "127.0.0.1",
        "remote_port": 7001,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 9,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
        "transload": {
            "wire": "kvwire/1",
            "lease": grant.lease,
            "generation": server.transfer.generation,
            "prompt": grant.prompt,
            "readers": 3,
        },
    }
    assert len(grant.lease) == 32


async def test_each_lease_has_another_name(server: ModelServer) -> None:
    first, second = await prefill(server), await prefill(server)
    assert first["transload"]["lease"] != second["transload"]["lease"]


async def test_blocks_are_given_back_when_a_thread_says_so(server: ModelServer) -> None:
    await prefill(server)
    core = server.engine.cores[0]
    assert core.usage > 0
    (grant,) = server.transfer.held
    await asyncio.to_thread(server.transfer.free, grant, "expired")
    await until(lambda: core.usage == 0, "the blocks are free")
    metrics = Metrics((await server.client.get("/metrics")).text)
    assert metrics.value("transload_kv_handoffs_total") == 1
    assert metrics.value("transload_kv_handoffs_ended_total", end="expired") == 1
    assert metrics.value("transload_kv_handoffs_held") == 0


async def test_who_waits_for_room_is_served_when_leases_end() -> None:
    async with serve_model(num_blocks=51) as server:
        long = list(range(120, 290))
        params = {"do_remote_decode": True}
        await server.complete(prompt=long, max_tokens=1, kv_transfer_params=params)
        waiting = asyncio.create_task(server.complete(prompt=long[::-1], max_tokens=2))
        await until(lambda: server.engine.cores[0].num_waiting == 1, "it waits")
        server.transfer.free(server.transfer.held[0])
        assert (await soon(waiting)).status_code == 200


async def test_a_prompt_that_is_elsewhere_is_loaded(server: ModelServer) -> None:
    response = await server.complete(kv_transfer_params=PARAMS, return_token_ids=True)
    assert tokens(response) == answer(PROMPT, 4)
    ((chunk,), *_) = server.runner.steps
    assert (chunk.first, chunk.end) == (8, 9)
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    (_, expected), (_, load) = server.transfer.log
    assert expected == HANDOFF
    assert isinstance(load, Load)
    assert load.handoff == HANDOFF


async def test_a_load_is_awaited_from_when_its_request_came(server: ModelServer) -> None:
    async with serve_model(max_requests=1, fails_with_load=False) as server:
        fill(server)
        server.runner.gate.clear()
        first = asyncio.create_task(server.complete())
        await until(server.runner.entered.is_set, "the step has begun")
        second = asyncio.create_task(server.complete(kv_transfer_params=PARAMS))
        await until(lambda: server.transfer.log, "it is expected")
        assert server.transfer.log == [("expect", HANDOFF)]
        server.runner.gate.set()
        assert (await soon(first)).status_code == (await soon(second)).status_code == 200


async def test_a_failed_load_is_computed_here_and_told(
    server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.transfer.outcome = lambda _: REFUSED
    with caplog.at_level(logging.WARNING):
        response = await server.complete(kv_transfer_params=PARAMS, return_token_ids=True)
    assert tokens(response) == answer(PROMPT, 4)
    (told,) = [each for each in caplog.records if each.name.startswith("transload_engine")]
    said = "computes its prompt here: refused (model.weights); open at 10.0.0.1:7000"
    assert said in told.getMessage()
    metrics = Metrics((await server.client.get("/metrics")).text)
    failures = metrics.nonzero("transload_kv_load_failures_total")
    assert [(labels["reason"], labels["path"], count) for labels, count in failures] == [
        ("refused", "model.weights", 1)
    ]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_failed_load_fails_its_request_where_that_is_wanted(streams: bool) -> None:
    async with serve_model(fails_with_load=True) as server:
        server.transfer.outcome = lambda _: REFUSED
        response = await soon(server.complete(kv_transfer_params=PARAMS, stream=streams))
        assert '"code":500' in response.text
        assert response.status_code == (200 if streams else 500)
        assert server.engine.cores[0].usage == 0
        assert server.runner.steps == []


async def test_who_leaves_while_it_loads_ends_the_load(server: ModelServer) -> None:
    server.transfer.gate.clear()
    core = server.engine.cores[0]
    asked = asyncio.create_task(server.complete(kv_transfer_params=PARAMS))
    await until(lambda: len(server.transfer.log) == 2, "it loads")
    assert core.usage > 0
    asked.cancel()
    await until(lambda: core.usage == 0, "the blocks are free")
    assert server.runner.steps == []


async def test_others_are_computed_while_one_loads(server: ModelServer) -> None:
    server.transfer.gate.clear()
    loading = asyncio.create_task(server.complete(kv_transfer_params=PARAMS))
    await until(lambda: len(server.transfer.log) == 2, "it loads")
    assert (await soon(server.complete(prompt=[150, 151]))).status_code == 200
    server.transfer.gate.set()
    assert (await soon(loading)).status_code == 200


async def test_a_refused_requests_handoff_is_forgone(server: ModelServer) -> None:
    # What routers send to release a handoff: refused before anybody renders it.
    refused = await server.complete(
        prompt=[0], stream=True, use_beam_search=True, kv_transfer_params=PARAMS
    )
    assert refused.status_code == 400
    assert server.transfer.log == [("forgo", HANDOFF)]


async def test_an_engine_that_stops_gives_all_back() -> None:
    async with serve_model() as server:
        await prefill(server)
        core = server.engine.cores[0]
        assert core.usage > 0
    assert core.usage == 0
    assert core.transfers.ends["forgone"] == 1
    assert server.transfer.log[-1] == ("close", None)


@pytest.mark.parametrize(
    ("params", "body", "said"),
    [
        ({"do_remote_decode": True}, {"n": 2, "temperature": 1}, "is for one answer; got n=2"),
        ({"do_remote_decode": True}, {"stream": True}, "can carry it; got stream=true"),
        ({"do_remote_decode": True}, {"prompt": [[1], [2]]}, "of one prompt; got 2 prompts"),
        (PARAMS, {"prompt": [[1], [2]]}, "of one prompt; got 2 prompts"),
        ({**PARAMS, "do_remote_decode": True}, {}, "with a prompt that is loaded"),
        ({"do_remote_decode": True, "transload_readers": 0}, {}, "1 to 65536; got 0"),
        ({"do_remote_decode": True, "transload_readers": "2"}, {}, "got '2'"),
        ({**PARAMS, "remote_port": "7000"}, {}, "1 to 65535; got '7000'"),
        ({**PARAMS, "remote_port": 65536}, {}, "1 to 65535; got 65536"),
        ({**PARAMS, "remote_block_ids": {"0": 1}}, {}, "is a list; got dict"),
        ({**PARAMS, "remote_host": "a..b"}, {}, "name or number; got 'a..b'"),
        ({**PARAMS, "remote_request_id": "x" * 257}, {}, "got 257 characters"),
        ({**PARAMS, "remote_engine_id": 7}, {}, "256 characters; got int"),
        ({**PARAMS, "transload": "x"}, {}, "transload` is an object; got str"),
        ({**PARAMS, "transload": {"wire": "kvwire/1", "lease": "l"}}, {}, "got NoneType"),
        ({**PARAMS, "transload": {**PARAMS["transload"], "lease": ""}}, {}, "got 0 characters"),
        ({**PARAMS, "transload": {**PARAMS["transload"], "prompt": 7}}, {}, "prompt` is text"),
        ({**PARAMS, "transload": {**PARAMS["transload"], "readers": 0}}, {}, "65536; got 0"),
    ],
)
async def test_what_no_handoff_can_come_of_is_refused_by_name(
    server: ModelServer, params: dict[str, Any], body: dict[str, Any], said: str
) -> None:
    refused = await server.complete(**{**body, "kv_transfer_params": params})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert said in error["message"]
    assert f"`{error['param']}`" in error["message"]
    assert (server.runner.steps, server.transfer.log) == ([], [])


async def test_what_has_no_meaning_here_is_passed_over(server: ModelServer) -> None:
    params = {"do_remote_prefill": False, "transload_readers": "x", "remote_port": None}
    assert (await server.complete(kv_transfer_params=params)).status_code == 200
    assert server.transfer.log == []
