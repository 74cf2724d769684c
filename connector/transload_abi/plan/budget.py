"""How much one pair may cost to compile, whatever its descriptors say.

Costs are counted in copies. CPU time, CPython 3.11 on an AMD EPYC: a copy takes 20 us
(`Pair.compile` of 2,000 buffers), a step of an axis 2.6 us (`axis_nests` on digits that do not
fit), an offset of a part 0.4 us (`side_of` with 4,096 parts), an offset that is only referred to
0.03 us (`merge` of such copies). Larger constants let through more work than the limit names;
smaller ones refuse pairs that cost little.
"""

from typing import Final

from transload_abi.compare_words import short
from transload_abi.errors import Refused
from transload_abi.limits import MAX_COPIES
from transload_abi.types import Group

STEPS_PER_COPY: Final = 8
"""Steps of an axis that take about as long as a copy takes to make."""

OFFSETS_PER_COPY: Final = 16
"""Offsets of parts, where they are worked out; at most as long."""

SHARED_OFFSETS_PER_COPY: Final = 256
"""Offsets of parts, where a copy only refers to them; at most as long."""


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
