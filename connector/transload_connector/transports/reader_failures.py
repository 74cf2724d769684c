"""What the outcomes of a session's machine are to whoever has asked."""

from transload_abi.wire.reader_events import ReadFailed, RequestFailed
from transload_abi.wire.session_events import SessionEnded
from transload_connector.transports.errors import (
    ClientClosed,
    LeaseGone,
    PeerFault,
    PeerRefused,
    PeerUnreachable,
    TimedOut,
    TransferError,
)


def of_session(event: SessionEnded, peer: str, what: str) -> TransferError:
    """Why a request has no answer, and never will have."""
    if event.why == "overdue":
        return TimedOut(peer, what, event.reason)
    if event.why in ("peer_error", "refused"):
        return PeerRefused(peer, what, event.reason, event.code or "refuse")
    if event.why == "peer_fault" and event.code == "bad_proof":
        return PeerRefused(peer, what, event.reason, event.code)
    if event.why == "peer_fault":
        return PeerFault(peer, what, event.reason)
    if event.why == "asked":
        return ClientClosed(peer, what, event.reason)
    return PeerUnreachable(peer, what, event.reason)


def of_request(event: RequestFailed, peer: str, what: str) -> TransferError:
    """Why the holder has refused one request."""
    return PeerRefused(peer, what, event.reason, event.code)


def of_read(event: ReadFailed, peer: str, what: str) -> TransferError:
    """Why a read brought nothing, in a session that goes on."""
    if event.why == "expired":
        return LeaseGone(peer, what, event.reason)
    if event.why == "refused":
        return PeerRefused(peer, what, event.reason, "refused")
    if event.why == "bad_data":
        return PeerFault(peer, what, event.reason)
    if event.why == "stream_lost":
        return PeerUnreachable(peer, what, event.reason)
    return TimedOut(peer, what, event.reason)
