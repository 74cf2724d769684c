"""Whether a holder's blocks become a reader's: both sides judge alike, by the descriptors alone."""

from collections.abc import Callable

from transload_abi import AbiError, Descriptor, read
from transload_abi.compare import compare
from transload_abi.wire.errors import BadDescriptor
from transload_abi.wire.holder_state import Compatible, Incompatible

Verdict = Callable[[Descriptor, Descriptor], Compatible | Incompatible]
"""From the holder's descriptor and the reader's, both in canonical form."""


def judge(holder: Descriptor, reader: Descriptor) -> Compatible | Incompatible:
    """What `connector/ABI.md`, section 8, says; lossy conversions are allowed."""
    comparison = compare(holder, reader)
    if comparison.verdict == "refused":
        return Incompatible(comparison.refusal.path, comparison.refusal.reason)
    return Compatible(comparison.verdict)


def judge_lossless(holder: Descriptor, reader: Descriptor) -> Compatible | Incompatible:
    """As `judge`, and no conversion that changes numbers."""
    comparison = compare(holder, reader)
    lossy = next((each for each in comparison.findings if each.verdict == "lossy"), None)
    if lossy is not None:
        return Incompatible(lossy.path, f"lossy conversions are not allowed here: {lossy.reason}")
    return judge(holder, reader)


def descriptor_of(body: bytes) -> Descriptor:
    """A peer's descriptor.

    Raises:
        BadDescriptor: It is none that `connector/ABI.md` allows.
    """
    try:
        return read(body)
    except AbiError as error:
        raise BadDescriptor(str(error), "descriptor") from None
