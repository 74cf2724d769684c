"""Conversations with a reader."""

import pytest

from support import (
    wire_reader_map_scripts,
    wire_reader_read_scripts,
    wire_reader_request_scripts,
    wire_reader_scripts,
)
from support.wire_reader_world import ReaderWorld
from support.wire_scripts import Script, play

SCRIPTS = (
    *wire_reader_scripts.SCRIPTS,
    *wire_reader_request_scripts.SCRIPTS,
    *wire_reader_map_scripts.SCRIPTS,
    *wire_reader_read_scripts.SCRIPTS,
)


@pytest.mark.parametrize("one", SCRIPTS, ids=lambda one: one.name)
def test_script(one: Script) -> None:
    play(one, ReaderWorld)


def test_names_are_unique() -> None:
    assert len({one.name for one in SCRIPTS}) == len(SCRIPTS)
