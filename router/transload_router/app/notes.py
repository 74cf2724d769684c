"""What the router says of its own doing in an answer's headers."""

from dataclasses import dataclass

from transload_router.app.headers import REQUEST_ID
from transload_router.app.request import GenerateRequest
from transload_router.core.types import Headers


@dataclass(slots=True)
class Notes:
    """Facts gathered along the way; ids are the router's own, never addresses."""

    request: GenerateRequest
    is_missing: bool = False
    has_decoded: bool = False
    used_handoff: bool = False
    prefill: str | None = None
    decode: str | None = None
    fallback: str | None = None
    prefill_seconds: float | None = None

    def headers(self) -> Headers:
        """A fallback is always told; who did what only where the client asked."""
        notes: Headers = []
        if self.request.client_id is not None:
            notes.append((REQUEST_ID, self.request.client_id))
        if self.is_missing:
            notes.append((b"x-transload-handoff", b"missing"))
        if self.fallback is not None:
            notes.append((b"x-transload-fallback", self.fallback.encode()))
        if self.request.wants_explanation:
            notes.extend(self._explanation())
        return notes

    @property
    def path(self) -> str:
        """How the request was served, if it came to that."""
        if not self.has_decoded:
            return "unserved"
        return "disaggregated" if self.used_handoff else "local"

    @property
    def reason(self) -> str:
        """Why it was served that way; of a bounded set."""
        return self.request.local_reason or self.fallback or "default"

    def _explanation(self) -> Headers:
        facts = {
            b"x-transload-path": self.path,
            b"x-transload-reason": self.reason,
            b"x-transload-prefill": self.prefill,
            b"x-transload-decode": self.decode,
            b"x-transload-prefill-seconds": (
                None if self.prefill_seconds is None else f"{self.prefill_seconds:.6f}"
            ),
        }
        return [(name, value.encode()) for name, value in facts.items() if value is not None]
