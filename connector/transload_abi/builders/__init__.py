"""Descriptors from what engines say of their caches, and pieces to write one by hand."""

from transload_abi.builders import by_hand, dynamo, lmcache, sglang, trtllm, vllm
from transload_abi.builders.blocks import Blocks, Heads
from transload_abi.builders.rope import rope_parameters
from transload_abi.builders.vllm_interior import Interior, StatePart
from transload_abi.builders.vllm_owner import Rank
from transload_abi.builders.vllm_read import plain

__all__ = [
    "Blocks",
    "Heads",
    "Interior",
    "Rank",
    "StatePart",
    "by_hand",
    "dynamo",
    "lmcache",
    "plain",
    "rope_parameters",
    "sglang",
    "trtllm",
    "vllm",
]
