"""The KV ABI: what the bytes of a KV cache mean, and what to copy so that one becomes another.

`connector/ABI.md` is the specification. `check.check` and `compare.compare` judge, `builders` makes
descriptors, `oracle` (with numpy) decodes pages by them.
"""

from transload_abi.compare import Comparison, Finding, Verdict
from transload_abi.errors import AbiError, DescriptorError, PlanError, ProofFailed, Refused
from transload_abi.fingerprints import Fingerprints, of_descriptor, of_group
from transload_abi.picture import describe
from transload_abi.plan import Blocks, Cover, Pair, Plan, copies, num_bytes, num_runs, regions
from transload_abi.proof import prove
from transload_abi.text import encode_json, encode_msgpack, pretty_json, read
from transload_abi.types import VERSION, Descriptor

__all__ = [
    "VERSION",
    "AbiError",
    "Blocks",
    "Comparison",
    "Cover",
    "Descriptor",
    "DescriptorError",
    "Finding",
    "Fingerprints",
    "Pair",
    "Plan",
    "PlanError",
    "ProofFailed",
    "Refused",
    "Verdict",
    "copies",
    "describe",
    "encode_json",
    "encode_msgpack",
    "num_bytes",
    "num_runs",
    "of_descriptor",
    "of_group",
    "pretty_json",
    "prove",
    "read",
    "regions",
]
