"""What the router says of its own doing in an answer's headers."""

import logging
from dataclasses import dataclass

import msgspec

from transload_router.app.headers import REQUEST_ID
from transload_router.app.request import GenerateRequest
from transload_router.core.policy import Chance, Decision, Reason, Terms
from transload_router.core.types import Headers
from transload_router.settings import Settings

log = logging.getLogger("transload")


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
    decision: Decision | None = None
    num_cached_tokens: int | None = None

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
        if self.request.local_reason or self.fallback:
            return self.request.local_reason or self.fallback or ""
        if self.decision is not None and self.decision.reason in _CHOSEN_LOCAL:
            return self.decision.reason.value
        return "default"

    def _explanation(self) -> Headers:
        facts = {
            b"x-transload-path": self.path,
            b"x-transload-reason": self.reason,
            b"x-transload-prefill": self.prefill,
            b"x-transload-decode": self.decode,
            b"x-transload-prefill-seconds": (
                None if self.prefill_seconds is None else f"{self.prefill_seconds:.6f}"
            ),
            b"x-transload-prompt": self.request.prompt_source,
            b"x-transload-cached-tokens": (
                None if self.num_cached_tokens is None else str(self.num_cached_tokens)
            ),
        }
        if self.decision is not None:
            terms = self.decision.predicted
            facts[b"x-transload-predicted-cached-tokens"] = str(terms.num_cached_tokens)
            facts[b"x-transload-terms"] = show_terms(terms)
        return [(name, value.encode()) for name, value in facts.items() if value is not None]


# Choices of decode alone that the policy made, for its own reasons.
_CHOSEN_LOCAL = frozenset({Reason.LOCAL_CHEAPER, Reason.NO_PREFILL})


def show_terms(terms: Terms) -> str:
    """A choice's figures in one line, those that are 0 left out; seconds to the microsecond."""
    figures = msgspec.structs.asdict(terms)
    shown = (
        f"{name}={value:.6f}" if isinstance(value, float) else f"{name}={value}"
        for name, value in figures.items()
        if value
    )
    return ", ".join(shown)


def log_decision(settings: Settings, chance: Chance, notes: Notes) -> None:
    """Log a sample of decisions with their figures."""
    decision = notes.decision
    if decision is None or chance() >= settings.decision_log_share:
        return
    log.info(
        "decision: prefill=%s decode=%s reason=%s prompt=%s tokens=%d %s",
        decision.prefill,
        decision.decode,
        decision.reason.value,
        notes.request.prompt_source,
        notes.request.num_prompt_tokens,
        show_terms(decision.predicted),
    )
