"""Conversations with a holder."""

import pytest

from support.wire_holder_scripts import SCRIPTS
from support.wire_holder_world import HolderWorld
from support.wire_scripts import Script, play


@pytest.mark.parametrize("one", SCRIPTS, ids=lambda one: one.name)
def test_script(one: Script) -> None:
    play(one, HolderWorld)


def test_names_are_unique() -> None:
    assert len({one.name for one in SCRIPTS}) == len(SCRIPTS)
