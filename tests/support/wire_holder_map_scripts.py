"""What a holder must do that is asked where its blocks are: the feature `shm`."""

from typing import Final

from msgspec.structs import replace

from support.wire_holder_scripts import (
    AGAIN,
    HELLO,
    LEASE,
    NOT_OPEN,
    OPENED,
    WELCOME,
    accepted,
    fault,
)
from support.wire_holder_world import FILES, hears, waits
from support.wire_scripts import Script, script
from transload_abi.wire import messages as m
from transload_abi.wire.ledger import Freed

SHARED: Final = (
    *accepted(replace(HELLO, features=("b", "c", m.SHM)), replace(WELCOME, features=("b", m.SHM))),
    hears(m.Open(1, "h1", "l-h1", "r1")),
    LEASE,
)
MAP: Final = m.Map(2, "h1", 0, ((0, 2), (4, 1)))
WITHOUT: Final = fault("out_of_turn", "map: the session is without the feature 'shm'")

SCRIPTS: Final[tuple[Script, ...]] = (
    script(
        "asked where blocks are",
        *SHARED,
        hears(MAP),
        m.Mapped(2, FILES, ((100, 2), (104, 1))),
        *AGAIN,
        ends="open",
        shares=True,
    ),
    script(
        "asked with an id that does not ascend",
        *SHARED,
        hears(m.Map(1, "h1", 0, ((0, 1),))),
        *fault("out_of_turn", "id: expected more than 1, got 1"),
        ends="ended",
        shares=True,
    ),
    script(
        "asked, and the reader does not know the feature",
        *OPENED[:1],
        replace(WELCOME, features=("b",)),
        *OPENED[2:],
        hears(MAP),
        *WITHOUT,
        ends="ended",
        shares=True,
    ),
    script(
        "asked, and the holder does not know the feature",
        *accepted(replace(HELLO, features=("b", "c", m.SHM)), WELCOME),
        hears(m.Open(1, "h1", "l-h1", "r1")),
        LEASE,
        hears(MAP),
        *WITHOUT,
        ends="ended",
    ),
    script(
        "asked of a handoff that is not open",
        *SHARED,
        hears(replace(MAP, handoff="h2")),
        m.Error("out_of_turn", NOT_OPEN, 2),
        *AGAIN,
        ends="open",
        shares=True,
    ),
    script(
        "asked of a lease whose time is over, and once more",
        *SHARED,
        waits(30.0),
        Freed("h1", "l-h1", "expired", 0),
        Freed("h2", "l-h2", "expired", 0),
        hears(MAP),
        m.Expired(2, "expired"),
        hears(replace(MAP, id=3)),
        m.Expired(3, "expired"),
        ends="open",
        shares=True,
    ),
    script(
        "asked for what is not there",
        *SHARED,
        hears(replace(MAP, table=1)),
        m.Error("bad_read", "map.table: the handoff has no table 1", 2),
        hears(replace(MAP, id=3, blocks=((7, 2),))),
        m.Error("bad_read", "map.blocks: the list has 8 blocks", 3),
        hears(replace(MAP, id=4, blocks=((6, 1),))),
        m.Error("internal", "map.handoff: the blocks are not known", 4),
        *AGAIN,
        ends="open",
        shares=True,
    ),
    script(
        "asked for more than a message holds",
        *SHARED,
        hears(replace(MAP, blocks=((7, 1),))),
        m.Error("too_many", "map: more pools and ranges of blocks than a message holds", 2),
        *AGAIN,
        ends="open",
        shares=True,
    ),
)
