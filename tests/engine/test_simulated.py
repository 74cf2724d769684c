"""The simulated core does what two real engines do with the same session, now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import engine_env
import record_session
from real_engine import launch
from real_engine.launch import Engines
from support.virtual_pair import comparable_events, facts, replay
from transload_engine.server.tokens import FolderTokenizer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

Line = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    session: list[Line]
    answers: list[Line]

    def answer(self, path: str, having: str) -> str:
        """What the engine said to the one recorded request whose body has this in it."""
        (found,) = (
            each["answer"]
            for each in self.answers
            if each["path"] == path and having in (each.get("body") or "")
        )
        return str(found)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """The session begins by emptying caches of its own engines; the shared ones are not used."""


@pytest.fixture(scope="module")
def recorded(engines: Engines) -> Iterator[Recording]:
    with TemporaryDirectory(prefix="session-") as folder:
        started = record_session.start(engines, Path(folder))
        try:
            session, answers = record_session.record(started, Path(folder))
        finally:
            for engine in started.values():
                engine.stop()
        yield Recording(session, answers)


def test_hits_and_events_of_a_session_are_the_same(recorded: Recording) -> None:
    replayed = replay(recorded.session)
    assert any(line.get("cached_tokens") for line in recorded.session)
    for number, (real, ours) in enumerate(zip(recorded.session, replayed, strict=True)):
        assert facts(ours) == facts(real), f"line {number}"
        assert comparable_events(ours) == comparable_events(real), f"line {number}"


def test_a_models_folder_gives_the_tokens_that_its_engine_makes(recorded: Recording) -> None:
    ours = FolderTokenizer(launch.ensure_model(engine_env.ensure()))
    text = json.loads(recorded.answer("/tokenize", "The cargo"))
    assert ours.encode("The cargo") == text["tokens"]
    assert ours.decode([70, 71, 72]) == json.loads(recorded.answer("/detokenize", "70"))["prompt"]
    stream = recorded.answer("/v1/chat/completions", "stream_options")
    first = json.loads(stream.split("\n\n")[0].removeprefix("data: "))
    turns = [{"role": "user", "content": "Hello"}]
    assert ours.encode_chat(turns, None, add_generation_prompt=True) == first["prompt_token_ids"]
