"""How long an engine takes: a step of a batch, a transfer of blocks.

A model, not a measurement: linear in what a step computes and in what it attends to. The defaults
are of the order of an 8B model in bfloat16 on one data-centre GPU; whoever needs an engine's own
figures fits them and passes a profile.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds by what is done; also the form of a profile file, in JSON.

    Attributes:
        prefill_base_s: Of a step in which some prompt is computed.
        prefill_token_s: More for each prompt token.
        prefill_pair_s: More for each pair of a prompt token and a token it attends to.
        decode_base_s: Of a step in which answers go on.
        decode_request_s: More for each of them.
        decode_context_token_s: More for each token that they attend to.
        transfer_base_s: Of one load, whatever its size.
        transfer_bytes_per_s: Of all loads of one decode engine together.
        block_bytes: One block, all layers.
    """

    prefill_base_s: float = 0.004
    prefill_token_s: float = 50e-6
    prefill_pair_s: float = 2e-9
    decode_base_s: float = 0.006
    decode_request_s: float = 30e-6
    decode_context_token_s: float = 40e-9
    transfer_base_s: float = 0.002
    transfer_bytes_per_s: float = 10e9
    block_bytes: int = 2 << 20

    @classmethod
    def load(cls, path: Path) -> "Profile":
        """A profile from a JSON file; what it leaves out is at its default.

        Raises:
            msgspec.ValidationError: A name or a type is wrong.
        """
        return msgspec.json.decode(path.read_bytes(), type=cls)

    @classmethod
    def instant(cls) -> "Profile":
        """Nothing takes any time: for tests that are about something else."""
        return cls(
            prefill_base_s=0.0,
            prefill_token_s=0.0,
            prefill_pair_s=0.0,
            decode_base_s=0.0,
            decode_request_s=0.0,
            decode_context_token_s=0.0,
            transfer_base_s=0.0,
            transfer_bytes_per_s=float("inf"),
        )

    def transfer_s(self, num_blocks: int) -> float:
        """Of one load's bytes alone, without `transfer_base_s`."""
        return num_blocks * self.block_bytes / self.transfer_bytes_per_s


@dataclass
class BatchSize:
    """What one step computes.

    Attributes:
        num_pairs: Pairs of a prompt token and a token that it attends to.
        num_context: Tokens that the answers' tokens attend to.
    """

    num_prefill_tokens: int = 0
    num_pairs: int = 0
    num_decoding: int = 0
    num_context: int = 0

    def add(self, num_computed: int, num_new: int, *, is_prefill: bool) -> None:
        """One request's share: new tokens behind those computed."""
        if is_prefill:
            self.num_prefill_tokens += num_new
            self.num_pairs += num_new * num_computed + num_new * (num_new + 1) // 2
        else:
            self.num_decoding += 1
            self.num_context += num_computed + 1

    def seconds(self, profile: Profile) -> float:
        """The step's time: what is computed together is paid one after the other."""
        total = 0.0
        if self.num_prefill_tokens:
            total += profile.prefill_base_s
            total += profile.prefill_token_s * self.num_prefill_tokens
            total += profile.prefill_pair_s * self.num_pairs
        if self.num_decoding:
            total += profile.decode_base_s
            total += profile.decode_request_s * self.num_decoding
            total += profile.decode_context_token_s * self.num_context
        return total
