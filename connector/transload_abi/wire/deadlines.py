"""How long each side waits, and how long blocks are held: the settings of ledger and machines.

Every wait of a conversation is among these. Sizes that both sides must agree on are in `limits`.
"""

import msgspec

from transload_abi.wire.limits import MAX_TERM_MS, OPENING_S, SILENCE_S


class Terms(msgspec.Struct, frozen=True):
    """How long a holder holds blocks.

    Attributes:
        term_s: Of a lease, from its grant and from each renewal. 30 s is what NIXL's users know as
            `kv_lease_duration`. At most what a message can say, `limits.MAX_TERM_MS`.
        max_hold_s: From the grant, whatever is renewed: what a reader that never ends costs. Ten
            minutes outlast any queue that a client waits in.
        max_remembered: Leases that have ended and are still told apart from unknown ones. At
            1,000 requests a second it is a minute, two terms; 10 MB at names of usual length.
    """

    term_s: float = 30.0
    max_hold_s: float = 600.0
    max_remembered: int = 1 << 16

    def __post_init__(self) -> None:
        most = MAX_TERM_MS / 1000
        if not 0 <= self.term_s <= most:
            raise ValueError(f"term_s: expected 0 to {most} seconds, got {self.term_s}")


class HolderDeadlines(msgspec.Struct, frozen=True):
    """How long a holder waits for a reader.

    Attributes:
        opening_s: From the connection to `accept`, or to the `attach` of a data stream. Between the
            `forgo` of a session without a descriptor the wait begins anew.
        stall_s: For the reader to take a data frame. Blocks that are being copied cannot be freed,
            so a reader that stops taking bytes would pin them.
        idle_s: Without a message from a reader that holds no lease. A connection costs little and
            opening one costs a comparison, so it may wait for the next request for long.
    """

    opening_s: float = OPENING_S
    stall_s: float = SILENCE_S
    idle_s: float = 600.0


class ReaderDeadlines(msgspec.Struct, frozen=True):
    """How long a reader waits for a holder.

    Attributes:
        opening_s: From the first byte to the holder's descriptor.
        answer_s: For the answer to a request, a `cancel` or an `attach`. The holder answers from
            memory; who does not, is stuck or gone, and the session ends.
        stall_s: For the next bytes of a read.
        read_s: For a whole read. A prompt of 100,000 tokens is some 30 GB, half a minute at
            10 Gbit/s.
        idle_s: Without an open handoff or a request. Shorter than the holder's, so that a request
            seldom meets a connection that its holder is closing.
    """

    opening_s: float = OPENING_S
    answer_s: float = 10.0
    stall_s: float = SILENCE_S
    read_s: float = 120.0
    idle_s: float = 300.0
