"""The simulated core does with its cache what vLLM 0.32.0 did in a recorded session."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.virtual_pair import replay

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
    facts = ("do", "engine", "leg", "cached_tokens", "num_handoff_blocks", "success")
    for number, (real, ours) in enumerate(zip(recorded, replayed, strict=True)):
        assert {key: ours.get(key) for key in facts} == {key: real.get(key) for key in facts}, (
            number
        )


def test_every_event_is_the_same_in_the_same_place(
    recorded: list[dict[str, Any]], replayed: list[dict[str, Any]]
) -> None:
    for number, (real, ours) in enumerate(zip(recorded, replayed, strict=True)):
        prompt, answers = real.get("prompt", []), (real.get("answer"), ours.get("answer"))
        theirs = [_without_answer(event, prompt, answers[0]) for event in real.get("events", ())]
        mine = [_without_answer(event, prompt, answers[1]) for event in ours.get("events", ())]
        assert mine == theirs, f"line {number}: {real['do']} on {real.get('engine')}"


def _without_answer(
    event: dict[str, Any], prompt: list[int], answer: list[int] | None
) -> dict[str, Any]:
    """Tokens of an answer by their place in it, since the models differ."""
    if answer is None or "token_ids" not in event:
        return event
    tokens, whole = event["token_ids"], [*prompt, *answer]
    starts = range(0, len(whole), event["block_size"])
    start = next(at for at in starts if whole[at : at + len(tokens)] == tokens)
    end = start + len(tokens)
    places = [*prompt[start:end], *(-at for at in range(max(start, len(prompt)), end))]
    return {**event, "token_ids": places}
