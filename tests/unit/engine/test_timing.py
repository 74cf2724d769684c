"""Seconds of steps and loads."""

from pathlib import Path

import msgspec
import pytest

from transload_engine.core.timing import BatchSize, Profile

PROFILE = Profile(
    prefill_base_s=1.0,
    prefill_token_s=0.1,
    prefill_pair_s=0.01,
    decode_base_s=2.0,
    decode_request_s=0.2,
    decode_context_token_s=0.02,
    transfer_base_s=0.5,
    transfer_bytes_per_s=100.0,
    block_bytes=50,
)


def test_a_prompts_tokens_attend_to_those_before_and_to_themselves() -> None:
    size = BatchSize()
    size.add(10, 3, is_prefill=True)
    assert size.num_pairs == 11 + 12 + 13
    assert size.seconds(PROFILE) == pytest.approx(1.0 + 0.3 + 0.36)


def test_a_decoding_step_is_paid_by_requests_and_by_what_they_attend_to() -> None:
    size = BatchSize()
    size.add(10, 1, is_prefill=False)
    size.add(20, 1, is_prefill=False)
    assert size.seconds(PROFILE) == pytest.approx(2.0 + 0.4 + 0.02 * 32)


def test_a_mixed_step_is_paid_twice() -> None:
    size = BatchSize()
    size.add(0, 1, is_prefill=True)
    size.add(10, 1, is_prefill=False)
    assert size.seconds(PROFILE) == pytest.approx(1.0 + 0.1 + 0.01 + 2.0 + 0.2 + 0.02 * 11)


def test_a_load_is_paid_by_its_bytes() -> None:
    assert PROFILE.transfer_s(4) == 2.0
    assert Profile.instant().transfer_s(10**6) == 0.0


def test_a_profile_file_says_only_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(b'{"block_bytes": 7}')
    assert Profile.load(file) == Profile(block_bytes=7)
    file.write_bytes(b'{"block_byte": 7}')
    with pytest.raises(msgspec.ValidationError, match="unknown field `block_byte`"):
        Profile.load(file)
