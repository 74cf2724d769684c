"""What can be wrong with a descriptor, a pair or a plan, and who has to mend it.

::

    AbiError
    ├── DescriptorError          whoever wrote the descriptor
    │   ├── MalformedDescriptor  the bytes are not JSON or MessagePack, or not the schema
    │   ├── UnknownPart          a field, role, codec, dtype, kind or version that this side lacks
    │   ├── LimitExceeded        a length or a number beyond `limits`
    │   └── Contradiction        well formed, and yet it cannot be: overlaps, digits, bounds
    ├── Refused                  the two sides differ in what no copy and no conversion can mend
    ├── PlanError                the caller: block lists or token counts that do not fit the pair
    ├── ProofFailed              our own fault: a plan that does not tile its destination
    └── VectorFailed             an implementation's answer differs from a conformance vector

Each message names the field by its path (`groups[1].roles[0].terms[2]`), what was expected and what
came. None of them carries input longer than `limits.MAX_QUOTED_CHARS`.
"""


class AbiError(ValueError):
    """Root of all errors of this package.

    Attributes:
        path: Where in the descriptor, for example `groups[0].codec.id`; empty where that says
            nothing.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class DescriptorError(AbiError):
    """A descriptor cannot be used; its writer has to mend it."""


class MalformedDescriptor(DescriptorError):
    """Not JSON or MessagePack, not the schema, or not the canonical form where that is due."""


class UnknownPart(DescriptorError):
    """A part that must be understood and is not: readers refuse it instead of guessing."""


class LimitExceeded(DescriptorError):
    """A length, a count or a number is beyond what any reader must accept."""


class Contradiction(DescriptorError):
    """The fields are well formed one by one and contradict each other."""


class Refused(AbiError):
    """Two descriptors do not convert; the message is for an operator."""


class PlanError(AbiError):
    """The caller's block lists or token range do not fit the pair of descriptors."""


class ProofFailed(AbiError):
    """A plan writes a bit twice, misses one, or reads one that the source does not own."""


class VectorFailed(AbiError):
    """An implementation disagrees with a conformance vector."""
