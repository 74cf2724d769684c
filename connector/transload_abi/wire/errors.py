"""What can go wrong in a conversation, who has to mend it, and whether the session survives.

::

    WireError
    ├── PeerError              the other side; the session ends, except where it says otherwise
    │   ├── BadFrame           a header, a length or a checksum
    │   ├── BadMessage         not the strict form, an unknown type or field, a field out of range
    │   ├── BadDescriptor      its descriptor cannot be used
    │   ├── BadVersion         no version in common
    │   ├── BadProof           it does not know the token
    │   ├── OutOfTurn          a message or frame that its sender may not send now
    │   ├── BadRead            asks for what the handoff does not hold; the session goes on
    │   └── TooMany            more at once than was agreed; the session goes on
    ├── Busy                   this side, for now; the session goes on
    └── Unsendable             our own fault: a message that no peer would accept

Each message names the message and the field (`read.blocks[2]`), what was expected and what came.
None carries input longer than `limits.MAX_QUOTED_CHARS` of the descriptor.
"""

from typing import ClassVar

from transload_abi.wire.limits import MAX_REASON_CHARS
from transload_abi.wire.messages import Code


class WireError(ValueError):
    """Root of all errors of this room.

    Attributes:
        code: Under which it is told to the peer.
        is_fatal: Whether the session ends with it; if not, one request fails.
        path: Message and field, for example `open.handoff`; empty where that says nothing.
    """

    code: ClassVar[Code] = "internal"
    is_fatal: ClassVar[bool] = True

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path

    @property
    def reason(self) -> str:
        """The text, short enough for a message."""
        return str(self)[:MAX_REASON_CHARS]


class PeerError(WireError):
    """The peer broke a rule of `connector/WIRE.md`."""


class BadFrame(PeerError):
    """Bytes that are no frame, or none that may come now; what follows cannot be told apart."""

    code = "bad_frame"


class BadMessage(PeerError):
    """A message that this version does not have, or whose fields are not what it asks for."""

    code = "bad_message"


class BadDescriptor(PeerError):
    """The peer's descriptor is refused by the rules of `connector/ABI.md`."""

    code = "bad_descriptor"


class BadVersion(PeerError):
    """The peer speaks no version that this side speaks."""

    code = "bad_version"


class BadProof(PeerError):
    """The peer does not know the shared token."""

    code = "bad_proof"


class OutOfTurn(PeerError):
    """Well formed, and not to be said now."""

    code = "out_of_turn"


class BadRead(PeerError):
    """A read of what is not there: the group, blocks, layers, heads or form."""

    code = "bad_read"
    is_fatal = False


class TooMany(PeerError):
    """More reads or handoffs at once than a session may have."""

    code = "too_many"
    is_fatal = False


class Busy(WireError):
    """This side cannot serve it now; asking again later may help."""

    code = "busy"
    is_fatal = False


class Unsendable(WireError):
    """The caller made a message that every peer would refuse."""
