"""Requests that one engine serves whole: their failures are answered, counted and leave nothing."""

import pytest

from support import behaviours
from support.expect import assert_own_error
from support.router_server import Fleet
from support.scripted_engine import Behaviour
from support.vllm_api import CHAT, dump

EMBEDDINGS = "/v1/embeddings"
BODY = {"model": "tiny-model", "input": "x"}


def refuse(status: int) -> Behaviour:
    return behaviours.answer(
        status, dump({"error": {"message": "no"}}), [("content-type", "application/json")]
    )


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (refuse(400), 400, "status_400"),
        (refuse(503), 503, "status_503"),
        (behaviours.hang, 504, "engine_timeout"),
        (behaviours.reset_before_header, 502, "engine_reset"),
        (behaviours.close_before_header, 502, "engine_reset"),
    ],
)
async def test_failures_before_the_body(
    fleet: Fleet, fault: Behaviour, status: int, kind: str
) -> None:
    fleet.d.always = fault
    answer = await fleet.router.client.post(EMBEDDINGS, json=BODY)
    assert answer.status_code == status
    assert "error" in answer.json()
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_errors_total", leg="decode", kind=kind) == 1
    code = str(status)
    assert scrape.value("transload_requests_total", endpoint="embeddings", code=code) == 1
    assert len(fleet.d.asked()) == 1, "what an engine may have done is not asked for again"


async def test_nobody_there(fleet: Fleet) -> None:
    await fleet.d.stop()
    answer = await fleet.router.client.post(EMBEDDINGS, json=BODY)
    assert answer.status_code == 503
    assert_own_error(CHAT, 503, answer.content)
    assert answer.headers["retry-after"] == "1"
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_errors_total", kind="engine_unreachable") == 1


async def test_a_defect_of_a_background_task_is_seen(fleet: Fleet) -> None:
    async def dies() -> None:
        raise LookupError("a defect")

    router = fleet.router.app.state.router
    router.spawn(dies())
    while router.num_background_tasks:
        await fleet.router.client.get("/healthz")
    answer = await fleet.router.client.get("/healthz")
    assert answer.status_code == 500
    assert "a defect" in answer.text
