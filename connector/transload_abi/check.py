"""What must hold in a descriptor beyond its schema."""

from transload_abi.errors import UnknownPart
from transload_abi.tree import inspect, tree_of
from transload_abi.types import VERSION, Descriptor


def check(descriptor: Descriptor) -> None:
    """See that a descriptor can be true."""
    if descriptor.abi != VERSION:
        raise UnknownPart(f"expected {VERSION!r}", "abi")
    inspect(tree_of(descriptor))
