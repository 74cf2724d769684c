"""A holder's side of the wire with a ledger and connections, and what can happen to it."""

import msgspec

from support.wire_scripts import Do, On, Said, messages_in
from transload_abi.wire import auth, codec, frames, messages
from transload_abi.wire.deadlines import HolderDeadlines, Terms
from transload_abi.wire.errors import BadDescriptor, BadRead, WireError
from transload_abi.wire.holder_state import Compatible, HolderSettings, Incompatible
from transload_abi.wire.ledger import Ledger
from transload_abi.wire.reception import Link, Reception

SESSION = "5e" * 16
NONCE = "ab" * 32
READER_NONCE = "cd" * 32
ZEROS = auth.NO_PROOF
TABLES = (messages.Table(0, 8),)
BLOCK_BYTES = 10
FILES = (messages.PoolFile("kv", "transload-kv", 80),)
TERMS = Terms(term_s=30.0, max_hold_s=100.0)
DEADLINES = HolderDeadlines(opening_s=10.0, stall_s=20.0, idle_s=200.0)


def compare(descriptor: bytes) -> Compatible | Incompatible:
    if descriptor == b"same":
        return Compatible("identical")
    if descriptor == b"other":
        return Incompatible("groups[0]", "2 layers against 3")
    raise BadDescriptor("not a descriptor", "descriptor")


def measure(read: messages.Read, tables: tuple[messages.Table, ...]) -> int:
    assert tables == TABLES
    if read.group == "unknown":
        raise BadRead("no such group", "read.group")
    if read.group == "empty":
        return 0
    return BLOCK_BYTES * sum(count for _, count in read.blocks)


def locate(asked: messages.Map, lease: str) -> messages.Mapped:
    """Block ids are positions and 100; the last ones are known to be trouble."""
    assert lease == f"l-{asked.handoff}"
    if asked.blocks == ((7, 1),):
        return messages.Mapped(asked.id, FILES, ((0, 1),) * 4097)
    if asked.blocks == ((6, 1),):
        raise WireError("the blocks are not known", "map.handoff")
    blocks = tuple((100 + first, count) for first, count in asked.blocks)
    return messages.Mapped(asked.id, FILES, blocks)


class HolderWorld:
    """One holder that holds `h1` (two readers) and `h2` (one), and connections to it.

    Args:
        token: As of its settings.
        terms: Of the ledger.
        shares: Whether its pools are in shared memory.
    """

    def __init__(self, token: bytes = b"", terms: Terms = TERMS, *, shares: bool = False) -> None:
        self.now = 0.0
        self.token = token
        self.ledger = Ledger(terms)
        for handoff, readers in (("h1", 2), ("h2", 1)):
            self.ledger.grant(handoff, f"l-{handoff}", TABLES, 100, readers, 0.0)
        settings = HolderSettings(
            "P",
            "g1",
            b"ours",
            token,
            max_data_bytes=8192,
            max_streams=2,
            features=("a", "b", messages.SHM) if shares else ("a", "b"),
            deadlines=DEADLINES,
        )
        self.reception = Reception(
            settings, self.ledger, compare, measure, locate if shares else None
        )
        self.links: list[Link] = [self.reception.connect(SESSION, NONCE, 0.0)]
        self.heard: list[object] = []
        self._told: list[object] = []
        self.hello_body = b""
        self.welcome_body = b""

    @property
    def state(self) -> str:
        session = self.links[0].session
        return session.state if session else "no session"

    def feed(self, link: int, data: bytes) -> None:
        self._told += self.links[link].feed(data, self.now)

    def join(self, message: messages.Attach, more: bytes) -> None:
        self.links.append(self.reception.connect("00" * 16, "00" * 32, self.now))
        self.feed(len(self.links) - 1, codec.encode(message) + more)

    def lose(self, link: int) -> None:
        self._told += self.links[link].lose(self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for link in self.links:
            self._told += link.tick(self.now)
        self._told += self.ledger.expire(self.now)

    def end(self, reason: str) -> None:
        self._told += self.links[0].end(reason, self.now)

    def say(self, answer: object) -> None:
        self._told.append(answer)

    def tells(self) -> list[object]:
        told: list[object] = []
        for number, link in enumerate(self.links):
            data = link.data_to_send()
            for each in messages_in(data, "holder"):
                if isinstance(each, messages.Welcome):
                    self.welcome_body = data[frames.HEADER_BYTES :]
                    told.append(msgspec.structs.replace(each, proof=ZEROS))
                else:
                    told.append(On(number, each) if number else each)
        told += self._told
        self._told = []
        return [*told, *self.ledger.expire(self.now)]


# What can happen.


def hears(message: messages.Message) -> Do:
    def does(world: HolderWorld) -> None:
        data = codec.encode(message)
        if isinstance(message, messages.Hello):
            world.hello_body = data[frames.HEADER_BYTES :]
        world.feed(0, data)

    return Do(repr(message), does)


def opens_many(number: int) -> Do:
    """As many handoffs are granted, and opened; what is said to that counts for nothing."""

    def does(world: HolderWorld) -> None:
        for id_ in range(1, number + 1):
            world.ledger.grant(f"m{id_}", "l", TABLES, 1, 1, world.now)
            world.feed(0, codec.encode(messages.Open(id_, f"m{id_}", "l", "r1")))
        world.links[0].data_to_send()

    return Do(f"opens {number} others", does)


def grants(handoff: str, lease: str) -> Do:
    """One more handoff, for one reader."""
    return Do(
        f"grants {handoff} {lease}",
        lambda world: world.ledger.grant(handoff, lease, TABLES, 100, 1, world.now),
    )


def strangers_open(handoff: str, lease: str, reader: str) -> Do:
    """Another session opens a handoff; the ledger's answer is said."""

    def does(world: HolderWorld) -> None:
        held = world.ledger.open(handoff, lease, reader, world.now)
        world.say(Said(held if isinstance(held, str) else "lease"))

    return Do(f"others open {handoff} {lease} as {reader}", does)


def hears_bytes(data: bytes, link: int = 0) -> Do:
    return Do(f"bytes {data!r} on {link}", lambda world: world.feed(link, data))


def hears_descriptor(body: bytes) -> Do:
    data = frames.descriptor_frame(body)
    return Do(f"descriptor {body!r}", lambda world: world.feed(0, data))


def proves(token: bytes) -> Do:
    def does(world: HolderWorld) -> None:
        digest = auth.transcript(world.hello_body, world.welcome_body)
        world.feed(0, codec.encode(messages.Prove(auth.reader_proof(token, digest))))

    return Do(f"proves {token!r}", does)


def joins(stream: int, token: bytes = b"", session: str = SESSION, more: bytes = b"") -> Do:
    """A connection asks to be a data stream, and may say more; it is the next one, from 1."""

    def does(world: HolderWorld) -> None:
        digest = b""
        if world.welcome_body:
            digest = auth.transcript(world.hello_body, world.welcome_body)
        proof = auth.stream_proof(auth.session_key(token, digest), session, stream)
        world.join(messages.Attach(session, stream, proof), more)

    return Do(f"joins as {stream}", does)


def loses(link: int = 0) -> Do:
    return Do(f"loses {link}", lambda world: world.lose(link))


def waits(seconds: float) -> Do:
    return Do(f"waits {seconds}", lambda world: world.pass_time(seconds))


def may_send(read: int) -> Do:
    def does(world: HolderWorld) -> None:
        session = world.links[0].session
        assert session is not None
        world.say(Said(session.may_send(read, world.now)))

    return Do(f"may send {read}", does)


def sent(read: int, num_bytes: int) -> Do:
    def does(world: HolderWorld) -> None:
        session = world.links[0].session
        assert session is not None
        session.sent(read, num_bytes, world.now)

    return Do(f"sent {read} {num_bytes}", does)


def fails(read: int) -> Do:
    def does(world: HolderWorld) -> None:
        session = world.links[0].session
        assert session is not None
        session.fail(read, "a disk is full", world.now)

    return Do(f"fails {read}", does)


def ends(reason: str) -> Do:
    return Do(f"ends {reason}", lambda world: world.end(reason))
