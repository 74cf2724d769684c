"""Owners whose pools are alike, so that one walk answers for all of them."""

from transload_router.core.index.owner import Layout, Owner


class Families:
    """Masks of owners by layout.

    Attributes:
        masks: Layout to owners; owners that have shown no group are in none.
    """

    __slots__ = ("masks",)

    def __init__(self) -> None:
        self.masks: dict[Layout, int] = {}

    def leave(self, owner: Owner) -> None:
        """Take an owner out, before its slot or layout changes."""
        if owner.layout is None:
            return
        left = self.masks[owner.layout] ^ owner.slot.bit
        if left:
            self.masks[owner.layout] = left
        else:
            del self.masks[owner.layout]

    def join(self, owner: Owner) -> None:
        """Put an owner that is in none where its pools belong now."""
        owner.lay_out()
        if owner.layout is not None:
            self.masks[owner.layout] = self.masks.get(owner.layout, 0) | owner.slot.bit
