"""Simulated engines word their answers as vLLM 0.32.0 did, member for member."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from transload_engine.core.settings import CoreSettings
from transload_engine.server.engine import EngineSpec
from transload_engine.server.fleet import SimulatedFleet

VECTORS = Path(__file__).parent / "vectors" / "vllm-0.32.0" / "answers.jsonl"
RECORDED = [json.loads(line) for line in VECTORS.read_text().splitlines()]
ASKED = [each for each in RECORDED if each["path"] != "/metrics"]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    core = CoreSettings(block_size=32, num_blocks=24, max_model_tokens=512)
    async with SimulatedFleet([EngineSpec(model="tiny", core=core)]) as fleet, _to(fleet) as client:
        yield client


def _to(fleet: SimulatedFleet) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=fleet.engines[0].url, trust_env=False)


def _shape(value: Any) -> Any:
    """Names in their order, types of values, nulls where they are."""
    if isinstance(value, dict):
        return [(name, _shape(each)) for name, each in value.items()]
    if isinstance(value, list):
        return ["list", _shape(value[0])] if value else ["list"]
    return type(value).__name__


def _events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [_shape(json.loads(line)) if line != "[DONE]" else line for line in lines]


def _name(recorded: dict[str, Any]) -> str:
    return f"{recorded['path']} {recorded['status']} {str(recorded['body'])[:60]}"


@pytest.mark.parametrize("recorded", ASKED, ids=_name)
async def test_an_answer_is_that_of_vllm(
    client: httpx.AsyncClient, recorded: dict[str, Any]
) -> None:
    answer = await client.request(
        recorded["method"], recorded["path"], content=recorded["body"], timeout=20
    )
    assert answer.status_code == recorded["status"], answer.text
    assert answer.headers["content-type"] == recorded["type"]
    if recorded["status"] == 200 and recorded["type"].startswith("text/event-stream"):
        assert _events(answer.text) == _events(recorded["answer"])
    elif recorded["status"] == 200:
        assert _shape(answer.json()) == _shape(json.loads(recorded["answer"]))
    else:
        assert _comparable(answer.json()) == _comparable(json.loads(recorded["answer"]))


def _comparable(error: dict[str, Any]) -> dict[str, Any]:
    """Where JSON broke, parsers may tell differently."""
    if "json_invalid" not in str(error):
        return error
    return {"error": {**error["error"], "message": "json_invalid", "param": "body"}}


async def test_metrics_are_called_as_vllms(client: httpx.AsyncClient) -> None:
    (names,) = (each["names"] for each in RECORDED if each["path"] == "/metrics")
    text = (await client.get("/metrics")).text
    samples = {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert "vllm:prefix_cache_hits_total" in samples
    known = {*names, *(f"{name}_{end}" for name in names for end in ("sum", "count"))}
    assert samples - known == set()


async def test_metrics_are_labelled_by_rank_and_model() -> None:
    spec = EngineSpec(model="tiny", num_ranks=2)
    async with SimulatedFleet([spec]) as fleet, _to(fleet) as client:
        lines = (await client.get("/metrics")).text.splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in lines
    assert 'vllm:num_requests_running{engine="1",model_name="tiny"} 0.0' in lines
    assert lines.count("# TYPE vllm:num_requests_running gauge") == 1
