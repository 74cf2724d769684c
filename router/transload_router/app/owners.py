"""Which engine holds a stored response: `/v1/responses/{id}` lives in one engine's memory."""

from collections import OrderedDict

# About 100 bytes each, so 10 MB at most; an owner that was forgotten is found again by asking.
MAX_OWNERS = 100_000


class Owners:
    """Response id to engine id, least recently used ones forgotten."""

    def __init__(self, limit: int = MAX_OWNERS) -> None:
        self._limit = limit
        self._owners: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def remember(self, response_id: str, engine_id: str) -> None:
        """Record the engine that answered with this id."""
        self._owners[response_id] = engine_id
        self._owners.move_to_end(response_id)
        if len(self._owners) > self._limit:
            self._owners.popitem(last=False)

    def find(self, response_id: str) -> str | None:
        """The engine that holds it, or None if that is not known."""
        engine_id = self._owners.get(response_id)
        if engine_id is not None:
            self._owners.move_to_end(response_id)
        return engine_id

    def forget_engine(self, engine_id: str) -> None:
        """Drop what a gone engine held."""
        for response_id in [key for key, owner in self._owners.items() if owner == engine_id]:
            del self._owners[response_id]
