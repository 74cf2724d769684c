"""Conversations with a holder."""

import pytest

from support import (
    wire_holder_map_scripts,
    wire_holder_request_scripts,
    wire_holder_scripts,
    wire_holder_stream_scripts,
)
from support.wire_holder_world import HolderWorld
from support.wire_scripts import Script, play

SCRIPTS = (
    *wire_holder_scripts.SCRIPTS,
    *wire_holder_map_scripts.SCRIPTS,
    *wire_holder_request_scripts.SCRIPTS,
    *wire_holder_stream_scripts.SCRIPTS,
)


@pytest.mark.parametrize("one", SCRIPTS, ids=lambda one: one.name)
def test_script(one: Script) -> None:
    play(one, HolderWorld)


def test_names_are_unique() -> None:
    assert len({one.name for one in SCRIPTS}) == len(SCRIPTS)
