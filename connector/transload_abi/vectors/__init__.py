"""Vectors of the KV ABI, put to an implementation: `tests/vectors/README.md` describes them."""

from transload_abi.harness.report import Result
from transload_abi.vectors.checks import (
    check_accepted,
    check_convert,
    check_decode,
    check_directory,
    check_refused,
    vectors_in,
)
from transload_abi.vectors.ours import OURS

__all__ = [
    "OURS",
    "Result",
    "check_accepted",
    "check_convert",
    "check_decode",
    "check_directory",
    "check_refused",
    "vectors_in",
]
