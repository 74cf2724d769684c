"""K24: bounded labels, one population per figure, no fallback without a counter."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support import behaviours
from support.router_server import Fleet, serve_fleet
from support.scripted_engine import Leg
from support.vllm_api import APIS, CHAT, COMPLETIONS, Api


def num_series(text: str) -> int:
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


async def test_the_page_is_prometheus(fleet: Fleet) -> None:
    await fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    answer = await fleet.router.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    names = {family.name for family in families}
    assert {
        "transload_requests",
        "transload_errors",
        "transload_paths",
        "transload_handoffs",
        "transload_handoffs_released",
        "transload_retries",
        "transload_fallbacks",
        "transload_time_to_first_token_seconds",
        "transload_inter_chunk_seconds",
        "transload_leg_seconds",
        "transload_requests_in_flight",
        "transload_engine_requests_in_flight",
    } <= names
    assert all(family.documentation for family in families)


async def test_a_flood_of_names(fleet: Fleet) -> None:
    """Models, paths, methods and headers of clients make no series."""
    fleet.d.always = behaviours.answer(200, b"{}")
    client = fleet.router.client
    await client.post(CHAT.path, json=CHAT.request())
    await client.post("/odd/first", json={})
    await client.get("/odd/first")
    before = num_series((await fleet.router.metrics()).text)

    async def ask(number: int) -> None:
        headers = {f"x-h-{number}": str(number), "x-request-id": f"id-{number}"}
        await client.post(CHAT.path, json=CHAT.request(model=f"m{number}"), headers=headers)
        await client.post(f"/odd/{number}?q={number}", json={"model": f"m{number}"})
        await client.get(f"/v1/models/m{number}")

    for start in range(0, 120, 30):
        await asyncio.gather(*(ask(number) for number in range(start, start + 30)))
    scrape = await fleet.router.metrics()
    assert num_series(scrape.text) - before < 20
    assert scrape.label_values("transload_requests_total", "model") <= {"tiny-model", "other"}
    assert not [
        v for v in scrape.label_values("transload_requests_total", "endpoint") if "odd" in v
    ]
    assert "m119" not in scrape.text


async def test_a_flood_of_statuses_and_methods(fleet: Fleet) -> None:
    """A status label has one of three digits, whatever an engine makes up."""
    client = fleet.router.client
    for status in range(200, 600, 7):
        if status in (204, 304):
            continue
        fleet.d.script.append(behaviours.answer(status, b"{}"))
        await client.post("/v1/embeddings", json={})
    for method in ("FOO", "BAR", "GET"):
        await client.request(method, "/x")
    scrape = await fleet.router.metrics()
    codes = scrape.label_values("transload_requests_total", "code")
    assert all(code.isdigit() and len(code) == 3 for code in codes)
    assert "FOO" not in scrape.text


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_time_to_first_token_is_for_streams(fleet: Fleet, api: Api) -> None:
    client = fleet.router.client
    count = "transload_time_to_first_token_seconds_count"
    for _ in range(3):
        await client.post(api.path, json=api.request())
    assert (await fleet.router.metrics()).value(count, endpoint=api.name) == 0
    for _ in range(2):
        await client.post(api.path, json=api.request(stream=True))
    fleet.d.script.append(behaviours.refuse(400))
    await client.post(api.path, json=api.request(stream=True))
    assert (await fleet.router.metrics()).value(count, endpoint=api.name) == 2


async def test_time_to_first_token_spans_both_legs(fleet: Fleet) -> None:
    gate = behaviours.Gate()
    fleet.p.by_leg[Leg.PREFILL] = gate.before()
    asking = asyncio.create_task(
        fleet.router.client.post(CHAT.path, json=CHAT.request(stream=True))
    )
    await gate.reached.wait()
    asyncio.get_running_loop().call_later(0.2, gate.opened.set)
    await asking
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_time_to_first_token_seconds_sum", endpoint="chat") >= 0.19


async def test_every_request_is_counted_once(fleet: Fleet) -> None:
    client = fleet.router.client
    for number, api in enumerate(APIS):
        for _ in range(number + 1):
            await client.post(api.path, json=api.request())
    await client.post(CHAT.path, content=b"{")
    await client.get("/no/such")
    scrape = await fleet.router.metrics()
    for number, api in enumerate(APIS):
        labels = {"endpoint": api.name, "code": "200", "model": "tiny-model"}
        expected = number + 1
        if api.name == "generate":
            del labels["model"]
        assert scrape.value("transload_requests_total", **labels) == expected
        labels = {"endpoint": api.name, "path": "disaggregated"}
        assert scrape.value("transload_paths_total", **labels) == expected
    assert scrape.value("transload_requests_total", endpoint="chat", code="400") == 1
    assert scrape.value("transload_requests_total", endpoint="other", code="404") == 1
    assert scrape.value("transload_handoffs_total", outcome="issued") == 15
    for leg in ("prefill", "decode"):
        assert scrape.value("transload_leg_seconds_count", leg=leg) >= 15


async def test_each_engine_has_its_series() -> None:
    async with serve_fleet(2, 3) as fleet:
        scrape = await fleet.router.metrics()
        engines = scrape.label_values("transload_engine_requests_in_flight", "engine")
        assert engines == {"prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"}
        assert "127.0.0.1" not in scrape.text


async def test_inter_chunk_times_are_of_streams(fleet: Fleet) -> None:
    name = "transload_inter_chunk_seconds_count"
    await fleet.router.client.post(COMPLETIONS.path, json=COMPLETIONS.request())
    assert (await fleet.router.metrics()).value(name) == 0
    gates = {number: asyncio.Event() for number in range(1, 4)}
    fleet.d.by_leg[Leg.DECODE] = behaviours.gated_stream(gates)
    async with fleet.router.client.stream(
        "POST", COMPLETIONS.path, json=COMPLETIONS.request(stream=True)
    ) as answer:
        chunks = answer.aiter_raw()
        for number in range(1, 4):
            await anext(chunks)
            gates[number].set()
        async for _ in chunks:
            pass
    assert (await fleet.router.metrics()).value(name, endpoint="completions") >= 3
