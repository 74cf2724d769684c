"""What a reader of another engine's blocks may be told: who failed, in which request, and why.

::

    TransferError
    ├── PeerUnreachable    nobody there, or gone in the middle; another try may help
    ├── PeerRefused        the peer will not: other token, other blocks, too many, not such a read
    ├── LeaseGone          the blocks are not held for this reader any more; prefill again
    ├── PeerFault          the peer broke a rule of `connector/WIRE.md`
    ├── TimedOut           a deadline of `ReaderDeadlines` is over
    ├── NotShared          the blocks are not in this host's memory; data frames bring them
    └── ClientClosed       this side has ended it

After any of these the bytes of a read are worthless: its memory may hold a part of them, or of
nobody's.
"""


class TransferError(Exception):
    """Root of all errors of a transfer.

    Attributes:
        peer: The holder's address, `host:port`.
        request: What was asked, for example `read of handoff 'cmpl-7'`.
    """

    def __init__(self, peer: str, request: str, reason: str) -> None:
        super().__init__(f"{request} at {peer}: {reason}")
        self.peer = peer
        self.request = request


class PeerUnreachable(TransferError):
    """No connection, or it ended before the answer."""


class PeerRefused(TransferError):
    """The holder will not do it, and says why.

    Attributes:
        code: Of the holder's error, or `refuse` where the descriptors do not convert.
    """

    def __init__(self, peer: str, request: str, reason: str, code: str = "refuse") -> None:
        super().__init__(peer, request, f"{code}: {reason}")
        self.code = code


class LeaseGone(TransferError):
    """The lease is not held, or not for this reader.

    Attributes:
        why: As `expired.why` of the wire, or the sentence with which a read failed.
    """

    def __init__(self, peer: str, request: str, why: str) -> None:
        super().__init__(peer, request, f"the lease is not held: {why}")
        self.why = why


class PeerFault(TransferError):
    """The holder broke a rule, or its bytes are not what it sent."""


class TimedOut(TransferError):
    """The holder kept this side waiting for too long."""


class NotShared(TransferError):
    """The holder's blocks cannot be had in this host's memory; they can be read by data frames."""


class ClientClosed(TransferError):
    """The client was closed before the answer came."""
