"""What can be made to go wrong with a simulated engine, while it runs."""

import msgspec


class Faults(msgspec.Struct, forbid_unknown_fields=True):
    """Faults in force; also the body of `POST /simulate/fault`, in which what is left out ends.

    Attributes:
        hangs: Requests of every kind are read and never answered, the one that says so excepted.
        refuses: Every request is answered 503, as by an engine whose core has died.
        stalls: The core takes no step; whatever needs none is still answered.
        slow_factor: Steps and loads take so many times as long.
        drops_events: Events are numbered and kept, and not published.
        skips_replay: Replays are answered with their end alone.
    """

    hangs: bool = False
    refuses: bool = False
    stalls: bool = False
    slow_factor: float = 1.0
    drops_events: bool = False
    skips_replay: bool = False
