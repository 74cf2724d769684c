"""The simulated core does what two real engines do with the same session, now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import record_session
from real_engine.launch import Engines
from support.virtual_pair import comparable_events, facts, replay

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def fresh() -> None:
    """The session begins by emptying caches of its own engines; the shared ones are not used."""


@pytest.fixture(scope="module")
def recorded(engines: Engines) -> Iterator[list[dict[str, Any]]]:
    with TemporaryDirectory(prefix="session-") as folder:
        started = record_session.start(engines, Path(folder))
        try:
            lines, _ = record_session.record(started, Path(folder))
        finally:
            for engine in started.values():
                engine.stop()
        yield lines


def test_hits_and_events_of_a_session_are_the_same(recorded: list[dict[str, Any]]) -> None:
    replayed = replay(recorded)
    assert any(line.get("cached_tokens") for line in recorded)
    for number, (real, ours) in enumerate(zip(recorded, replayed, strict=True)):
        assert facts(ours) == facts(real), f"line {number}"
        assert comparable_events(ours) == comparable_events(real), f"line {number}"
