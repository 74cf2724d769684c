"""Guards and actions of the reader's table for how sessions and data streams begin and end."""

from typing import Final

from transload_abi.wire import auth, codec, frames, messages
from transload_abi.wire.errors import BadMessage, BadProof, BadVersion, OutOfTurn
from transload_abi.wire.reader_events import Ready, StreamFailed, StreamReady
from transload_abi.wire.reader_state import DescriptorCame, ReaderCore, StreamAttached
from transload_abi.wire.session_events import Broken, EndAsked, Overdue, StreamLost

VERSIONS: Final = (1,)


# Guards.


def is_proof_wrong(c: ReaderCore, e: object) -> bool:
    """The holder does not know the token, or somebody changed what was said."""
    assert isinstance(e, messages.Welcome)
    digest = auth.transcript(c.hello_body, c.welcome_body)
    expected = auth.holder_proof(c.settings.token, digest)
    try:
        auth.check_proof(expected, e.proof, c.settings.token, "welcome.proof")
    except BadProof:
        return True
    return False


def is_version_unasked(_c: ReaderCore, e: object) -> bool:
    """The holder wants to speak what this side does not."""
    assert isinstance(e, messages.Welcome)
    return e.version not in VERSIONS


def is_more_than_asked(c: ReaderCore, e: object) -> bool:
    """The holder would send larger frames, or use features, that this side did not offer."""
    assert isinstance(e, messages.Welcome)
    known = c.settings
    return e.max_data_bytes > known.max_data_bytes or not set(e.features) <= set(known.features)


def is_other_start(c: ReaderCore, e: object) -> bool:
    """The holder that the handoff names is gone; another start of it has the address."""
    assert isinstance(e, messages.Welcome)
    return c.settings.holder_generation not in ("", e.generation)


def has_no_descriptor(c: ReaderCore, _e: object) -> bool:
    """The session is for giving handoffs up."""
    return c.settings.descriptor is None


def is_asked_for(c: ReaderCore, e: object) -> bool:
    """The stream was asked for, by this number, on this connection."""
    assert isinstance(e, StreamAttached)
    return e.stream in c.attaching and e.message.stream == e.stream


def is_attaching(c: ReaderCore, e: object) -> bool:
    """The stream was asked for."""
    assert isinstance(e, StreamLost)
    return e.stream in c.attaching


def is_attached(c: ReaderCore, e: object) -> bool:
    """The stream was usable."""
    assert isinstance(e, StreamLost)
    return e.stream in c.streams


# Actions of the opening.


def say_hello(c: ReaderCore, _e: object) -> None:
    """Introduce this side."""
    known = c.settings
    hello = messages.Hello(
        versions=VERSIONS,
        engine=known.engine,
        generation=known.generation,
        nonce=c.nonce,
        max_data_bytes=known.max_data_bytes,
        features=known.features,
    )
    c.hello_body = codec.encode_body(hello)
    c.say(hello)


def fail_proof(c: ReaderCore, _e: object) -> None:
    """Tell it that it is a stranger."""
    c.break_off(BadProof("the peer does not know this side's token", "welcome.proof"))


def fail_version(c: ReaderCore, e: object) -> None:
    """Say what was offered."""
    assert isinstance(e, messages.Welcome)
    c.break_off(BadVersion(f"expected one of {VERSIONS}, got {e.version}", "welcome.version"))


def fail_excess(c: ReaderCore, _e: object) -> None:
    """Say that it was not offered."""
    c.break_off(BadMessage("more than the hello offered", "welcome"))


def end_other_start(c: ReaderCore, e: object) -> None:
    """Nobody broke a rule, and there is nothing to read."""
    assert isinstance(e, messages.Welcome)
    expected = c.settings.holder_generation
    c.say(messages.Bye("another start of the holder was expected"))
    c.tell_end("refused", reason=f"holder {e.engine!r} is not at its start {expected!r} any more")


def note_welcome(c: ReaderCore, e: object) -> None:
    """Remember what the holder said of itself."""
    assert isinstance(e, messages.Welcome)
    c.welcome = e
    c.digest = auth.transcript(c.hello_body, c.welcome_body)


def say_prove(c: ReaderCore, _e: object) -> None:
    """Prove that this side knows the token."""
    c.say(messages.Prove(auth.reader_proof(c.settings.token, c.digest)))


def say_descriptor(c: ReaderCore, _e: object) -> None:
    """Describe this side's blocks."""
    assert c.settings.descriptor is not None
    c.out.append(frames.descriptor_frame(c.settings.descriptor))


def wait_anew(c: ReaderCore, _e: object) -> None:
    """Idleness is counted from here."""
    c.since = c.now


def tell_forgoing(c: ReaderCore, _e: object) -> None:
    """The owner may forgo."""
    assert c.welcome is not None
    c.events.append(Ready(c.welcome, None, b""))


def note_accept(c: ReaderCore, e: object) -> None:
    """Remember the verdict."""
    assert isinstance(e, messages.Accept)
    c.accept = e


def end_refused(c: ReaderCore, e: object) -> None:
    """Its blocks never become this side's."""
    assert isinstance(e, messages.Refuse)
    c.tell_end("refused", reason=f"{c.peer}: {e.path}: {e.reason}")


def tell_ready(c: ReaderCore, e: object) -> None:
    """The owner may read."""
    assert isinstance(e, DescriptorCame)
    assert c.welcome is not None
    assert c.accept is not None
    c.events.append(Ready(c.welcome, c.accept.verdict, e.body))


# Actions for data streams.


def attach_stream(c: ReaderCore, e: object) -> None:
    """Reads may name it."""
    assert isinstance(e, StreamAttached)
    del c.attaching[e.stream]
    c.streams.add(e.stream)


def tell_stream_ready(c: ReaderCore, e: object) -> None:
    """The owner may use it."""
    assert isinstance(e, StreamAttached)
    c.events.append(StreamReady(e.stream))


def forget_attaching(c: ReaderCore, e: object) -> None:
    """It is waited for no more."""
    assert isinstance(e, StreamLost)
    del c.attaching[e.stream]


def forget_stream(c: ReaderCore, e: object) -> None:
    """Reads can name it no more."""
    assert isinstance(e, StreamLost)
    c.streams.discard(e.stream)


def fail_reads_of_stream(c: ReaderCore, e: object) -> None:
    """What of them has not come never will."""
    assert isinstance(e, StreamLost)
    for id_, read in list(c.reads.items()):
        if read.stream == e.stream and not read.is_full:
            c.fail_read(id_, "stream_lost", f"the data stream {e.stream} has ended")


def tell_stream_failed(c: ReaderCore, e: object) -> None:
    """The owner cannot use it."""
    assert isinstance(e, StreamLost)
    c.events.append(StreamFailed(e.stream, e.reason or "its connection has ended"))


# Actions for the end.


def break_off_for(c: ReaderCore, e: object) -> None:
    """What came cannot be read, or may not come ever."""
    assert isinstance(e, Broken)
    c.break_off(e.error)


def break_off_unasked(c: ReaderCore, _e: object) -> None:
    """Data of a read that was never asked for."""
    c.break_off(OutOfTurn("data of a read that was never asked for", "data.read"))


def end_by_bye(c: ReaderCore, e: object) -> None:
    """The holder has ended it in order."""
    assert isinstance(e, messages.Bye)
    c.tell_end("peer_bye", reason=f"{c.peer} says bye: {e.reason}")


def end_by_error(c: ReaderCore, e: object) -> None:
    """The holder has ended it for what it takes for this side's fault."""
    assert isinstance(e, messages.Error)
    c.tell_end("peer_error", e.code, f"{c.peer} says {e.code}: {e.reason}")


def end_by_loss(c: ReaderCore, _e: object) -> None:
    """The holder is gone."""
    c.tell_end("peer_lost", reason=f"{c.peer} is gone: its control stream ended without a bye")


def end_overdue(c: ReaderCore, e: object) -> None:
    """The holder kept this side waiting."""
    assert isinstance(e, Overdue)
    c.say(messages.Bye(e.reason))
    c.tell_end("overdue", reason=f"{c.peer}: {e.reason}")


def end_idle(c: ReaderCore, _e: object) -> None:
    """Nothing was to be said for long."""
    c.say(messages.Bye("idle"))
    c.tell_end("idle")


def end_asked(c: ReaderCore, e: object) -> None:
    """The owner ends it."""
    assert isinstance(e, EndAsked)
    c.say(messages.Bye(e.reason))
    c.tell_end("asked", reason=e.reason)
