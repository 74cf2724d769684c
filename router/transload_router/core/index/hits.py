"""What an index answers: how much of a prompt each destination need not compute."""

from typing import NamedTuple

from transload_router.core.types import DestinationKey


class Hit(NamedTuple):
    """The prefix of a prompt that a destination can load.

    Attributes:
        num_gpu_tokens: Of it, from the start, already where attention reads it.
        num_tokens: All of it, from any tier: the GPU's prefix first, lower tiers go on. Whole
            blocks, and never the prompt's last token, as engines reuse them.
        is_predicted: Whether requests on their way there made the difference.
        is_exact: Whether the destination's own events say so. False where it is inferred from
            routing alone, and where a cache group of the destination announces blocks in a way
            that does not tell which they are: then a hit may be shorter, or none.
    """

    num_gpu_tokens: int
    num_tokens: int
    is_predicted: bool = False
    is_exact: bool = True


# Destinations that are not in it hold nothing that is known.
Match = dict[DestinationKey, Hit]
