"""The messages of `kvwire/1` as values. What they mean, and who may say which when: `WIRE.md`.

The *holder* has blocks (a prefill engine), the *reader* wants them. Every request of a reader has
an `id`, and its answer has the same. A *handoff* is one request's blocks; its *lease* names the one
time that they are held, so what has been given up and handed off anew is never taken for the same.
"""

from typing import Final, Literal

import msgspec

from transload_abi.wire.message_parts import Code as Code
from transload_abi.wire.message_parts import Form as Form
from transload_abi.wire.message_parts import Gone as Gone
from transload_abi.wire.message_parts import PoolFile as PoolFile
from transload_abi.wire.message_parts import Range as Range
from transload_abi.wire.message_parts import Table as Table

SHM: Final = "shm"
"""The feature of a holder whose pools are in shared memory."""


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag=str.lower
):
    """Any message; its type is the class's name in small letters, words joined by underscores."""


# --- from reader to holder


class Hello(Message, frozen=True):
    """The first message of a control stream.

    Attributes:
        versions: Of the protocol that the reader speaks, ascending.
        engine: Its name, for people.
        generation: Another one after each start of the reader.
        nonce: 64 hex digits, drawn for this session.
        features: Names of additions that the reader knows, ascending.
        max_data_bytes: Of a data frame that it takes.
    """

    versions: tuple[int, ...]
    engine: str
    generation: str
    nonce: str
    max_data_bytes: int
    features: tuple[str, ...] = ()


class Prove(Message, frozen=True):
    """The reader knows the shared token.

    Its descriptor follows in a frame of its own, or a `Forgo` of one who has none.

    Attributes:
        proof: 64 hex digits, see `auth`.
    """

    proof: str


class Attach(Message, frozen=True):
    """The first and only message of a data stream.

    Attributes:
        session: As in `Welcome`.
        stream: Its number, 1 to `Welcome.max_streams`; each is attached once.
        proof: 64 hex digits, see `auth`.
    """

    session: str
    stream: int
    proof: str


class Open(Message, frozen=True):
    """Begin to read a handoff.

    Attributes:
        reader: Which of its readers this is; the same in `Done` and `Release`.
    """

    id: int
    handoff: str
    lease: str
    reader: str


class Read(Message, frozen=True):
    """Send blocks of a handoff that is open.

    Attributes:
        group: Of the holder's descriptor.
        blocks: Ranges of positions in the handoff's list of the group's table, ascending; not block
            ids.
        layers: Range of the group's layer positions; None for all.
        heads: Range of the model's head numbers; None for all that are held. Only with form
            `elements`.
        form: What is sent.
        stream: On which the data come; 0: the control stream.
        checksums: Whether each data frame has one.
    """

    id: int
    handoff: str
    group: str
    blocks: tuple[Range, ...]
    layers: Range | None = None
    heads: Range | None = None
    form: Form = "elements"
    stream: int = 0
    checksums: bool = False


class Cancel(Message, frozen=True):
    """Send no more of a read.

    What ends it comes as its one answer: `Cancelled`, or `ReadEnd`, `Expired` or `Error` where that
    was under way.

    Attributes:
        id: Of the read.
    """

    id: int


class Confirm(Message, frozen=True):
    """Is the lease still held? Asked after memory was read by other means than data frames."""

    id: int
    handoff: str


class Map(Message, frozen=True):
    """Where are blocks of an open handoff in this host's memory? Of the feature `SHM`.

    Attributes:
        table: Of the holder's descriptor.
        blocks: Ranges of positions in the handoff's list of that table, ascending.
    """

    id: int
    handoff: str
    table: int
    blocks: tuple[Range, ...]


class Renew(Message, frozen=True):
    """Hold the blocks for another term."""

    id: int
    handoff: str


class Done(Message, frozen=True):
    """This reader has what it wanted; a handoff's last reader frees it."""

    id: int
    handoff: str


class Release(Message, frozen=True):
    """This reader will not read (any more); counts as `Done` does."""

    id: int
    handoff: str


class Forgo(Message, frozen=True):
    """End a lease for all its readers at once; it need not be open.

    Sent by whoever knows that nobody will come, a router for instance; needs no descriptor.
    """

    id: int
    handoff: str
    lease: str


# --- from holder to reader


class Welcome(Message, frozen=True):
    """The answer to `Hello`.

    Attributes:
        version: The one to speak.
        engine: The holder's name, for people.
        generation: Another one after each start of the holder; no handoff outlives it.
        session: 32 hex digits, drawn for this session.
        nonce: 64 hex digits, likewise.
        proof: That the holder knows the shared token, see `auth`.
        max_data_bytes: Of a data frame: the lesser of both sides' wishes.
        max_streams: Data streams that may be attached.
        features: Those of `Hello.features` that the holder knows too.
    """

    version: int
    engine: str
    generation: str
    session: str
    nonce: str
    proof: str
    max_data_bytes: int
    max_streams: int = 0
    features: tuple[str, ...] = ()


class Accept(Message, frozen=True):
    """The holder would serve this reader. Its descriptor follows in a frame of its own.

    Attributes:
        verdict: From the holder's blocks to the reader's, as the holder sees it.
    """

    verdict: Literal["identical", "lossless", "lossy"]


class Refuse(Message, frozen=True):
    """The holder's blocks never become the reader's; the session ends.

    Attributes:
        path: Of the field in the reader's descriptor.
        reason: For an operator.
    """

    path: str
    reason: str


class Attached(Message, frozen=True):
    """The answer to `Attach`, on the data stream."""

    stream: int


class Lease(Message, frozen=True):
    """The answer to `Open`.

    Attributes:
        num_tokens: Of the request, in the blocks.
        num_encoder_tokens: Of a request with an encoder.
        tables: The lists.
        readers: For how many the handoff is.
        left: How many of them have not ended it, this one included.
        expires_ms: From now, unless it is renewed.
    """

    id: int
    num_tokens: int
    tables: tuple[Table, ...]
    readers: int
    left: int
    expires_ms: int
    num_encoder_tokens: int = 0


class ReadEnd(Message, frozen=True, tag="read_end"):
    """All bytes of a read have been sent, and the lease was still held behind the last one.

    Attributes:
        num_bytes: Of the payload. Those on another stream may still be under way.
    """

    id: int
    num_bytes: int


class Cancelled(Message, frozen=True):
    """A read has ended by `Cancel`; nothing of it follows on any stream but what is under way."""

    id: int


class Mapped(Message, frozen=True):
    """The answer to `Map`. What is read so is the lease's only once a later `Confirm` says so.

    Attributes:
        pools: All that the table's groups lie in, ascending.
        blocks: Ranges of block ids, one id for each position that was asked for, in their order.
    """

    id: int
    pools: tuple[PoolFile, ...]
    blocks: tuple[Range, ...]


class Confirmed(Message, frozen=True):
    """The answer to `Confirm`, and to `Renew`: the lease is held.

    Attributes:
        expires_ms: From now.
    """

    id: int
    expires_ms: int


class Ended(Message, frozen=True):
    """The answer to `Done`, `Release` and `Forgo`.

    Attributes:
        left: Readers that have not ended the handoff; 0: its blocks are free.
    """

    id: int
    left: int


class Expired(Message, frozen=True):
    """The answer to any request about a lease that is not held; a read's bytes are worthless.

    Attributes:
        why: See `Gone`.
    """

    id: int
    why: Gone


class Error(Message, frozen=True):
    """The answer to a request that cannot be served; without `id`, the session ends with it.

    Attributes:
        id: Of the request; 0: of the session.
        code: For programs.
        reason: For an operator.
    """

    code: Code
    reason: str
    id: int = 0


# --- from either


class Bye(Message, frozen=True):
    """The sender ends the session; leases stay as they are.

    Attributes:
        reason: For an operator; empty where there is nothing to say.
    """

    reason: str = ""


ReaderMessage = (
    Hello
    | Prove
    | Attach
    | Open
    | Read
    | Cancel
    | Map
    | Confirm
    | Renew
    | Done
    | Release
    | Forgo
    | Bye
)
HolderMessage = (
    Welcome
    | Accept
    | Refuse
    | Attached
    | Lease
    | ReadEnd
    | Cancelled
    | Mapped
    | Confirmed
    | Ended
    | Expired
    | Error
    | Bye
)
