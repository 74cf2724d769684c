"""What errors of transfers are to a request: a reason to count, a field, a sentence."""

import pytest

from transload_abi import AbiError, PlanError
from transload_abi.errors import LimitExceeded, Refused
from transload_abi.wire.errors import BadRead, WireError
from transload_connector.transports.errors import (
    ClientClosed,
    LeaseGone,
    PeerFault,
    PeerRefused,
    PeerUnreachable,
    TimedOut,
    TransferError,
)
from transload_engine.core.handoff import Handoff
from transload_engine.core.transfers import LoadProblem
from transload_engine.server.kv_failures import (
    OTHER,
    conflict,
    failure_of,
    foreign,
    other_prompt,
)

HANDOFF = Handoff("engine", "cmpl-1", "10.0.0.1", 7000, 3)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (PeerUnreachable("p:1", "open", "ECONNREFUSED"), LoadProblem.UNREACHABLE),
        (PeerRefused("p:1", "open", "no place", "too_many"), LoadProblem.REFUSED),
        (LeaseGone("p:1", "open", "expired"), LoadProblem.EXPIRED),
        (PeerFault("p:1", "read", "a wrong checksum"), LoadProblem.CORRUPT),
        (TimedOut("p:1", "read", "no byte"), LoadProblem.TIMEOUT),
        (ClientClosed("p:1", "read", "closed"), LoadProblem.ABORTED),
        (BadRead("no such block", "read.blocks"), LoadProblem.CORRUPT),
        (PlanError("9 blocks for 2 tokens", "sources[0]"), LoadProblem.CORRUPT),
        (LimitExceeded("too long"), LoadProblem.REFUSED),
    ],
)
def test_each_error_has_its_reason(
    error: TransferError | AbiError | WireError, problem: LoadProblem
) -> None:
    failed = failure_of(error)
    assert (failed.problem, failed.path, failed.message) == (problem, "", str(error))


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (PeerRefused("p:1", "open", "model.weights: they differ"), "model.weights"),
        (PeerRefused("p:1", "open", "p0: groups[0].codec.id: no"), "groups[].codec.id"),
        (PeerRefused("p:1", "open", "groups[31].owner.tokens: no"), "groups[].owner.tokens"),
        (Refused("k to k: a loss", "groups[1].roles[0]"), "groups[].roles[]"),
        (Refused("k to k: no", "groups[1].roles[12].shape.D"), "groups[].roles[].shape"),
        (PeerRefused("p:1", "open", "model.rope.params.theta_9: no"), "model.rope.params"),
        (PeerRefused("p:1", "open", "model.words_9: no"), OTHER),
        (PeerRefused("p:1", "open", "model.weights.words_9: no"), OTHER),
        (PeerRefused("p:1", "open", "groups.9.codec.id: no"), OTHER),
        (PeerRefused("p:1", "open", 'model.rope.params."} 1: differs'), ""),
        (PeerRefused("p:1", "open", f"model.{'x' * 90}: differs"), ""),
        (LeaseGone("p:1", "open", "model.weights: x"), ""),
    ],
)
def test_a_refusals_field_is_told_if_it_is_one(error: TransferError | AbiError, path: str) -> None:
    assert failure_of(error).path == path


def test_no_error_of_a_transfer_is_without_a_reason() -> None:
    kinds = [TransferError]
    for kind in kinds:
        ours = (each for each in kind.__subclasses__() if each.__module__.startswith("transload_"))
        kinds += ours
    problems = {failure_of(kind("p:1", "read", "no")).problem for kind in kinds[1:]}
    assert {LoadProblem.UNREACHABLE, LoadProblem.ABORTED} < problems


def test_a_foreign_handoff_is_told_by_its_engine() -> None:
    failed = foreign(HANDOFF)
    assert failed.problem is LoadProblem.FOREIGN
    assert "engine at 10.0.0.1:7000 has no `transload` that says kvwire/1" in failed.message


def test_other_reasons_name_the_handoff() -> None:
    assert other_prompt(HANDOFF, 9, 8).message == (
        "handoff cmpl-1 of engine engine holds 9 tokens, and the prompt has 8"
    )
    assert conflict(HANDOFF, "it is open").problem is LoadProblem.CONFLICT
