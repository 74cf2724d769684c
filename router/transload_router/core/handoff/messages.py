"""What the handoff machine is told and what it says: states, events, commands, the policy."""

import enum
from dataclasses import dataclass
from typing import Literal

import msgspec

FailReason = Literal["no_decode", "no_prefill", "missing_handoff", "leg"]
Counted = Literal[
    "prefill_retried",
    "decode_retried",
    "handoff_presented_again",
    "missing_handoff",
    "empty_prefill",
    "prefill_failed_local",
]
Cause = Literal["unreachable", "timeout", "reset", "bad_answer"]


class State(enum.StrEnum):
    """Where a request is."""

    CHOOSING = "choosing"
    PREFILLING = "prefilling"
    ABANDONING = "abandoning"
    DECODING = "decoding"
    RELAYING = "relaying"
    DONE = "done"


# Events: what happened.


class EnginesChosen(msgspec.Struct, frozen=True, gc=False):
    """The shell's answer to `ChooseEngines`; None where nobody can serve that leg.

    `is_local`: a prefill engine may be there, and the policy still has decode read the prompt.
    """

    prefill: str | None
    decode: str | None
    is_local: bool = False


class PrefillReplied(msgspec.Struct, frozen=True, gc=False):
    """Prefill answered 2xx; its `kv_transfer_params` as raw JSON, None where absent or null."""

    handoff: bytes | None


class PrefillRefused(msgspec.Struct, frozen=True, gc=False):
    """Prefill answered with another status; the shell holds the answer."""

    status: int
    has_other: bool = False


class PrefillFailed(msgspec.Struct, frozen=True, gc=False):
    """The prefill leg failed below HTTP."""

    cause: Cause
    was_sent: bool
    has_other: bool = False


class DecodeAnswered(msgspec.Struct, frozen=True, gc=False):
    """Decode's status is known (and, unless it streams, its whole body); the client has no byte.

    `is_untouched`: the engine refused the request before it looked at the handoff.
    """

    status: int
    has_other: bool = False
    is_untouched: bool = False


class DecodeFailed(msgspec.Struct, frozen=True, gc=False):
    """The decode leg failed below HTTP."""

    cause: Cause
    was_sent: bool
    has_other: bool = False


class DecodeEnded(msgspec.Struct, frozen=True, gc=False):
    """The answer is with the client to its last byte."""


class ClientGone(msgspec.Struct, frozen=True, gc=False):
    """The client closed its connection; `was_sent` speaks of the current leg's request."""

    was_sent: bool


Event = (
    EnginesChosen
    | PrefillReplied
    | PrefillRefused
    | PrefillFailed
    | DecodeAnswered
    | DecodeFailed
    | DecodeEnded
    | ClientGone
)


# Commands: what to do, in order.


class ChooseEngines(msgspec.Struct, frozen=True, gc=False):
    """Choose and reserve; `avoid` names engines that failed this request."""

    wants_prefill: bool
    avoid: frozenset[str]


class SendPrefill(msgspec.Struct, frozen=True, gc=False):
    """Send the prefill leg to the engine chosen."""

    engine: str


class SendDecode(msgspec.Struct, frozen=True, gc=False):
    """Send the decode leg to the engine chosen, with the handoff or with none."""

    engine: str
    handoff: bytes | None


class RelayDecode(msgspec.Struct, frozen=True, gc=False):
    """Give the client decode's answer, whatever its status."""


class PassRefusal(msgspec.Struct, frozen=True, gc=False):
    """Give the client prefill's answer unchanged."""


class Fail(msgspec.Struct, frozen=True, gc=False):
    """Answer with an error of our own."""

    reason: FailReason
    was_retried: bool


class EndStream(msgspec.Struct, frozen=True, gc=False):
    """The answer is cut: tell the client in its API's own words, then end."""


class AbandonPrefill(msgspec.Struct, frozen=True, gc=False):
    """End the prefill leg soon, but read what it may have answered by then."""


class CloseDecode(msgspec.Struct, frozen=True, gc=False):
    """Close the decode leg at once."""


class Release(msgspec.Struct, frozen=True, gc=False):
    """Free prefill's blocks for a handoff that no engine will use."""

    handoff: bytes


class Count(msgspec.Struct, frozen=True, gc=False):
    """A fallback or retry for the metrics and the log."""

    what: Counted


Command = (
    ChooseEngines
    | SendPrefill
    | SendDecode
    | RelayDecode
    | PassRefusal
    | Fail
    | EndStream
    | AbandonPrefill
    | CloseDecode
    | Release
    | Count
)


@dataclass(frozen=True, slots=True)
class HandoffPolicy:
    """The operator's choices.

    Attributes:
        recompute_missing: Without a handoff, let decode read the prompt itself.
        local_when_empty: With no prefill engine up, let decode read the prompt itself.
        local_when_failed: After prefill failed, let decode read the prompt itself.
    """

    recompute_missing: bool = True
    local_when_empty: bool = True
    local_when_failed: bool = False
