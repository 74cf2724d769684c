"""Handoffs and leases."""

import hashlib
from typing import Any

import pytest

from transload_engine.core.blocks import Block
from transload_engine.core.handoff import NEEDED, Grant, Handoff, Leases, Origin, prompt_digest

ORIGIN = Origin("engine", "127.0.0.1", 7000)
PARAMS: dict[str, Any] = ORIGIN.params("request", [4, 5], 20, 16)


def test_what_is_written_is_what_vllm_writes() -> None:
    assert PARAMS == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[4, 5]],
        "remote_engine_id": "engine",
        "remote_request_id": "request",
        "remote_host": "127.0.0.1",
        "remote_port": 7000,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 20,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 16,
    }


def test_what_is_written_can_be_read() -> None:
    assert Handoff.read(PARAMS) == Handoff("engine", "request", "127.0.0.1", 7000, 2, 16)


def test_older_engines_list_blocks_flat_and_tell_no_hits() -> None:
    older = {**PARAMS, "remote_block_ids": [4, 5, 6]}
    del older["remote_prefill_cached_tokens"]
    assert Handoff.read(older) == Handoff("engine", "request", "127.0.0.1", 7000, 3, None)


@pytest.mark.parametrize("missing", ["do_remote_prefill", *NEEDED])
def test_without_a_field_there_is_nothing_to_load(missing: str) -> None:
    assert Handoff.read({**PARAMS, missing: None}) is None


@pytest.mark.parametrize(
    ("name", "given"), [("remote_port", "7000"), ("remote_block_ids", {"0": [4]})]
)
def test_what_is_no_handoff_is_none(name: str, given: object) -> None:
    assert Handoff.read({**PARAMS, name: given}) is None


def test_a_lease_is_told_under_a_key_of_its_own() -> None:
    own = Grant("request", "lease", [4, 5], 20, 1, "sha256:5").params("generation")
    assert own == {
        "transload": {
            "wire": "kvwire/1",
            "lease": "lease",
            "generation": "generation",
            "prompt": "sha256:5",
        }
    }
    read = Handoff.read({**PARAMS, **own})
    assert read == Handoff(
        "engine", "request", "127.0.0.1", 7000, 2, 16, "lease", "generation", "sha256:5"
    )
    assert read.speaks_wire


def test_a_prompts_digest_is_of_its_ids_as_four_bytes_each() -> None:
    bytes_ = bytes.fromhex("01000000 00010000 ffff0100")
    assert prompt_digest([1, 256, 131071]) == f"sha256:{hashlib.sha256(bytes_).hexdigest()}"


def test_several_readers_are_told_of() -> None:
    own = Grant("request", "lease", [4, 5], 20, 3, "sha256:5").params("generation")
    read = Handoff.read({**PARAMS, **own})
    assert read is not None
    assert read.num_readers == 3


@pytest.mark.parametrize("own", [None, [], {}, {"wire": "kvwire/2", "lease": "lease"}])
def test_a_handoff_of_another_connector_speaks_another_way(own: object) -> None:
    read = Handoff.read({**PARAMS, "transload": own})
    assert read is not None
    assert not read.speaks_wire


@pytest.fixture
def leases() -> Leases:
    leases = Leases(10.0)
    leases.grant("r", [Block(1), Block(2)], [5, 6], now=100.0)
    return leases


def test_a_lease_is_read_and_ended_once(leases: Leases) -> None:
    assert leases.read("r", 101.0) == [5, 6]
    blocks = leases.end("r")
    assert blocks is not None
    assert [block.block_id for block in blocks] == [2, 1]
    assert leases.num_late == 0
    assert leases.read("r", 101.0) is None
    assert leases.end("r") is None
    assert leases.num_late == 1


def test_a_lease_that_nobody_reads_runs_out(leases: Leases) -> None:
    assert leases.next_expiry_s == 110.0
    assert leases.expire(109.9) == []
    assert [block.block_id for block in leases.expire(110.0)] == [2, 1]
    assert leases.num_expired == 1
    assert leases.held == {}
    assert leases.end("r") is None
    assert leases.num_late == 1


def test_reading_renews(leases: Leases) -> None:
    leases.read("r", 109.0)
    assert leases.expire(118.9) == []
    assert leases.next_expiry_s == 119.0
