"""The simulated core does with its cache what vLLM 0.32.0 did in a recorded session."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.virtual_pair import comparable_events, facts, replay

VECTORS = Path(__file__).parent / "vectors" / "vllm-0.32.0" / "session.jsonl"


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in VECTORS.read_text().splitlines()]


@pytest.fixture(scope="module")
def replayed(recorded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return replay(recorded)


def test_the_session_holds_what_it_is_meant_to_show(recorded: list[dict[str, Any]]) -> None:
    kinds = {event["type"] for line in recorded for event in line.get("events", ())}
    assert kinds == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    served = [line for line in recorded if line["do"] == "complete"]
    assert {line["leg"] for line in served} == {"local", "prefill", "decode"}
    assert sum(1 for line in served if line["cached_tokens"]) >= 10
    assert any(line["cache_salt"] for line in served)
    assert [line["success"] for line in recorded if line["do"] == "reset"] == [True, True]


def test_every_request_hits_as_many_tokens(
    recorded: list[dict[str, Any]], replayed: list[dict[str, Any]]
) -> None:
    for number, (real, ours) in enumerate(zip(recorded, replayed, strict=True)):
        assert facts(ours) == facts(real), f"line {number}"


def test_every_event_is_the_same_in_the_same_place(
    recorded: list[dict[str, Any]], replayed: list[dict[str, Any]]
) -> None:
    for number, (real, ours) in enumerate(zip(recorded, replayed, strict=True)):
        assert comparable_events(ours) == comparable_events(real), f"line {number}"
