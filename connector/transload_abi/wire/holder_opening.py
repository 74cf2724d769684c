"""Guards and actions of the holder's table for how sessions and data streams begin and end."""

from typing import Final

import msgspec

from transload_abi.wire import auth, codec, messages
from transload_abi.wire.errors import BadProof, BadVersion, OutOfTurn, WireError
from transload_abi.wire.holder_state import (
    Compatible,
    HolderCore,
    Incompatible,
    ReaderAccepted,
    StreamAsked,
)
from transload_abi.wire.session_events import Broken, EndAsked, Overdue, StreamLost

VERSION: Final = 1
"""The only one so far."""


# Guards.


def shares_no_version(_c: HolderCore, e: object) -> bool:
    """The reader does not speak this side's version."""
    assert isinstance(e, messages.Hello)
    return VERSION not in e.versions


def is_proof_wrong(c: HolderCore, e: object) -> bool:
    """The reader does not know the token."""
    assert isinstance(e, messages.Prove)
    return _is_wrong(auth.reader_proof(c.settings.token, c.digest), e.proof, c)


def is_stream_proof_wrong(c: HolderCore, e: object) -> bool:
    """Whoever asks for a data stream is not this session's reader."""
    assert isinstance(e, StreamAsked)
    key = auth.session_key(c.settings.token, c.digest)
    return _is_wrong(auth.stream_proof(key, c.session, e.attach.stream), e.attach.proof, c)


def is_stream_taken(c: HolderCore, e: object) -> bool:
    """Each data stream that was offered is attached once."""
    assert isinstance(e, StreamAsked)
    number = e.attach.stream
    return number > c.settings.max_streams or number in c.seen_streams


def _is_wrong(expected: str, given: str, c: HolderCore) -> bool:
    try:
        auth.check_proof(expected, given, c.settings.token, "proof")
    except BadProof:
        return True
    return False


# Actions of the opening.


def fail_version(c: HolderCore, e: object) -> None:
    """Say which version there is."""
    assert isinstance(e, messages.Hello)
    break_off(c, BadVersion(f"expected {VERSION} among {e.versions}", "hello.versions"))


def fail_proof(c: HolderCore, _e: object) -> None:
    """Say that the reader has another token."""
    break_off(c, BadProof("the peer does not know this side's token", "prove.proof"))


def note_hello(c: HolderCore, e: object) -> None:
    """Remember what the reader said of itself."""
    assert isinstance(e, messages.Hello)
    c.hello = e
    c.max_data_bytes = min(e.max_data_bytes, c.settings.max_data_bytes)


def say_welcome(c: HolderCore, e: object) -> None:
    """Introduce this side, and prove that it knows the token."""
    assert isinstance(e, messages.Hello)
    known = c.settings
    welcome = messages.Welcome(
        version=VERSION,
        engine=known.engine,
        generation=known.generation,
        session=c.session,
        nonce=c.nonce,
        proof=auth.NO_PROOF,
        max_data_bytes=min(e.max_data_bytes, known.max_data_bytes),
        max_streams=known.max_streams,
        features=tuple(each for each in e.features if each in known.features),
    )
    c.digest = auth.transcript(c.hello_body, codec.encode_body(welcome))
    c.say(msgspec.structs.replace(welcome, proof=auth.holder_proof(known.token, c.digest)))


def wait_anew(c: HolderCore, _e: object) -> None:
    """The opening's wait begins again."""
    c.since = c.now


def say_accept(c: HolderCore, e: object) -> None:
    """Say that the blocks convert, and describe them."""
    assert isinstance(e, Compatible)
    c.say(messages.Accept(e.verdict))
    c.say_descriptor()


def tell_accepted(c: HolderCore, e: object) -> None:
    """The owner learns who reads."""
    assert isinstance(e, Compatible)
    assert c.hello is not None
    c.events.append(ReaderAccepted(c.hello, e.verdict))


def refuse_reader(c: HolderCore, e: object) -> None:
    """Say which field is in the way, to the reader and to the owner."""
    assert isinstance(e, Incompatible)
    c.say(messages.Refuse(e.path, e.reason))
    c.tell_end("refused", reason=f"{c.peer}: {e.path}: {e.reason}")


# Actions for data streams.


def refuse_early_stream(c: HolderCore, _e: object) -> None:
    """The session is not open: nobody knows yet that its reader may read."""
    _refuse_stream(c, OutOfTurn("the session is not open", "attach.session"))


def refuse_unproven_stream(c: HolderCore, _e: object) -> None:
    """Tell a stranger that it is one."""
    _refuse_stream(c, BadProof("not of this session's reader", "attach.proof"))


def refuse_taken_stream(c: HolderCore, e: object) -> None:
    """Say that there is no such stream, or not any more."""
    assert isinstance(e, StreamAsked)
    _refuse_stream(c, OutOfTurn(f"{e.attach.stream} is not free", "attach.stream"))


def attach_stream(c: HolderCore, e: object) -> None:
    """Reads may name this stream from now on."""
    assert isinstance(e, StreamAsked)
    c.streams.add(e.attach.stream)
    c.seen_streams.add(e.attach.stream)


def say_attached(c: HolderCore, e: object) -> None:
    """Answer, on the new stream."""
    assert isinstance(e, StreamAsked)
    c.stream_answer = messages.Attached(e.attach.stream)


def _refuse_stream(c: HolderCore, error: WireError) -> None:
    c.stream_answer = messages.Error(error.code, error.reason)


def lose_stream(c: HolderCore, e: object) -> None:
    """Reads can name it no more."""
    assert isinstance(e, StreamLost)
    c.streams.discard(e.stream)


# Actions for the end.


def break_off(c: HolderCore, error: WireError) -> None:
    """The peer broke a rule: tell it which, and the owner."""
    c.say_error(0, error)
    c.tell_end("peer_fault", error.code, f"{c.peer}: {error.reason}")


def break_off_for(c: HolderCore, e: object) -> None:
    """What came cannot be read, or may not come ever."""
    assert isinstance(e, Broken)
    break_off(c, e.error)


def end_by_bye(c: HolderCore, e: object) -> None:
    """The reader has ended it in order."""
    assert isinstance(e, messages.Bye)
    c.tell_end("peer_bye", reason=f"{c.peer} says bye: {e.reason}")


def end_by_loss(c: HolderCore, _e: object) -> None:
    """The reader is gone."""
    c.tell_end("peer_lost", reason=f"{c.peer} is gone: its control stream ended without a bye")


def end_overdue(c: HolderCore, e: object) -> None:
    """The reader kept this side waiting."""
    assert isinstance(e, Overdue)
    c.say(messages.Bye(e.reason))
    c.tell_end("overdue", reason=f"{c.peer}: {e.reason}")


def end_idle(c: HolderCore, _e: object) -> None:
    """Nothing was said for long, and nothing is held for this reader."""
    c.say(messages.Bye("idle"))
    c.tell_end("idle")


def end_asked(c: HolderCore, e: object) -> None:
    """The owner ends it."""
    assert isinstance(e, EndAsked)
    c.say(messages.Bye(e.reason))
    c.tell_end("asked", reason=e.reason)
