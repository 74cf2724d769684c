"""A test of the tests: each row of both tables, broken in any of these ways, turns a script red."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support import (
    wire_holder_map_scripts,
    wire_holder_request_scripts,
    wire_holder_scripts,
    wire_holder_stream_scripts,
    wire_reader_map_scripts,
    wire_reader_read_scripts,
    wire_reader_request_scripts,
    wire_reader_scripts,
)
from support.wire_holder_world import HolderWorld
from support.wire_reader_world import ReaderWorld
from support.wire_scripts import Script, is_red, play
from transload_abi.wire import holder_table, reader_table
from transload_abi.wire.session_events import Row, always

Table = dict[tuple[Any, type], tuple[Row[Any, Any], ...]]
Key = tuple[Any, type]
HOLDER: Table = holder_table.TABLE
READER: Table = reader_table.TABLE
HOLDER_SCRIPTS = (
    *wire_holder_scripts.SCRIPTS,
    *wire_holder_map_scripts.SCRIPTS,
    *wire_holder_request_scripts.SCRIPTS,
    *wire_holder_stream_scripts.SCRIPTS,
)
READER_SCRIPTS = (
    *wire_reader_scripts.SCRIPTS,
    *wire_reader_request_scripts.SCRIPTS,
    *wire_reader_map_scripts.SCRIPTS,
    *wire_reader_read_scripts.SCRIPTS,
)


class Watched(dict[Key, tuple[Row[Any, Any], ...]]):
    """A table that knows which of its entries were looked up."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.seen: set[Key] = set()

    def get(self, key: Key, default: Any = ()) -> Any:
        self.seen.add(key)
        return super().get(key, default)


def scripts_by_key(
    module: Any, scripts: tuple[Script, ...], world: Callable[..., Any]
) -> dict[Key, list[Script]]:
    """Which scripts come past an entry: the others cannot notice what is done to it."""
    found: dict[Key, list[Script]] = {}
    whole = module.TABLE
    for one in scripts:
        module.TABLE = watched = Watched(whole)
        try:
            play(one, world)
        finally:
            module.TABLE = whole
        for key in watched.seen:
            found.setdefault(key, []).append(one)
    return found


HOLDER_PAST = scripts_by_key(holder_table, HOLDER_SCRIPTS, HolderWorld)
READER_PAST = scripts_by_key(reader_table, READER_SCRIPTS, ReaderWorld)


def rows_of(table: Table) -> list[Any]:
    """A case for each row."""
    return [
        pytest.param(key, index, id=f"{key[0]}+{key[1].__name__}:{index}")
        for key, rows in table.items()
        for index in range(len(rows))
    ]


def _inverted(guard: Callable[[Any, object], bool]) -> Callable[[Any, object], bool]:
    return lambda core, event: not guard(core, event)


def mutants(rows: tuple[Row[Any, Any], ...], at: int) -> Iterator[tuple[str, Any]]:
    """Ways to break a row."""
    row = rows[at]

    def replaced(*instead: Row[Any, Any]) -> tuple[Row[Any, Any], ...]:
        return (*rows[:at], *instead, *rows[at + 1 :])

    yield "removed", replaced()
    yield "guard inverted", replaced(Row(_inverted(row.guard), row.actions, row.target, ""))
    if row.guard is not always:
        yield "guard dropped", replaced(Row(always, row.actions, row.target, ""))
    for other in type(row.target):
        if other is not row.target:
            yield f"to {other}", replaced(Row(row.guard, row.actions, other, ""))
    for index in range(len(row.actions)):
        fewer = (*row.actions[:index], *row.actions[index + 1 :])
        yield f"without action {index}", replaced(Row(row.guard, fewer, row.target, ""))


@pytest.mark.parametrize(("key", "at"), rows_of(HOLDER))
def test_broken_rows_of_the_holder_are_noticed(
    monkeypatch: pytest.MonkeyPatch, key: Key, at: int
) -> None:
    assert unnoticed(monkeypatch, HOLDER, key, at, HOLDER_PAST, HolderWorld) == []


@pytest.mark.parametrize(("key", "at"), rows_of(READER))
def test_broken_rows_of_the_reader_are_noticed(
    monkeypatch: pytest.MonkeyPatch, key: Key, at: int
) -> None:
    assert unnoticed(monkeypatch, READER, key, at, READER_PAST, ReaderWorld) == []


def unnoticed(
    monkeypatch: pytest.MonkeyPatch,
    table: Table,
    key: Key,
    at: int,
    past: dict[Key, list[Script]],
    world: Callable[..., Any],
) -> list[str]:
    """What was done to a row without any script turning red."""
    found = []
    for name, rows in mutants(table[key], at):
        monkeypatch.setitem(table, key, rows)
        if not any(is_red(one, world) for one in past.get(key, [])):
            found.append(name)
    return found


@pytest.mark.parametrize("table", [HOLDER, READER], ids=["holder", "reader"])
def test_every_row_says_what_it_is_for(table: Table) -> None:
    assert [key for key, rows in table.items() for row in rows if not row.says] == []


@pytest.mark.parametrize("table", [HOLDER, READER], ids=["holder", "reader"])
def test_the_end_is_final(table: Table) -> None:
    assert [key for key in table if key[0] == "ended"] == []
