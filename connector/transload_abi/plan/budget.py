"""How much one pair may cost to compile, whatever its descriptors say."""

from transload_abi.compare_words import short
from transload_abi.errors import Refused
from transload_abi.limits import MAX_COPIES
from transload_abi.types import Group

STEPS_PER_COPY = 8
"""Steps of an axis that take about as long as a copy takes to make."""

OFFSETS_PER_COPY = 16
"""Offsets of parts likewise, where they are worked out."""

SHARED_OFFSETS_PER_COPY = 256
"""Likewise, where a copy only refers to them."""


class Budget:
    """How many copies and conversions may still be made: one budget for all groups of a pair."""

    def __init__(self, copies: int = MAX_COPIES) -> None:
        self.most = copies
        self.left = copies

    def spend(self, copies: int, src: Group, dst: Group) -> None:
        """Take that many, before they are made.

        Raises:
            Refused: There are fewer left; the message names the groups.
        """
        if copies > self.left:
            raise Refused(
                f"{short(src.id)} to {short(dst.id)}: the pair would take "
                f"more than {self.most} copies and conversions for each piece, or as much work"
            )
        self.left -= copies
