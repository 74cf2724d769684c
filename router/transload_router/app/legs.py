"""The legs of one request: chosen, reserved, sent, ended, whatever happens."""

import logging
from dataclasses import dataclass
from time import monotonic, perf_counter

from transload_router.app.choosing import expect_blocks, make_ask
from transload_router.app.request import GenerateRequest
from transload_router.app.state import Router
from transload_router.core import handoff as machine
from transload_router.core.policy import Destination
from transload_router.core.routing import Choice
from transload_router.core.types import DestinationKey, Engine, Role
from transload_router.errors import (
    EngineError,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
)
from transload_router.io.upstream import Exchange, Sending

log = logging.getLogger("transload")


@dataclass(slots=True)
class Leg:
    """One leg: its destination, its exchange.

    Attributes:
        started: `perf_counter` when it was sent, 0.0 before.
    """

    destination: Destination
    started: float = 0.0
    sending: Sending | None = None
    exchange: Exchange | None = None

    @property
    def engine(self) -> Engine:
        """The engine it runs on."""
        return self.destination.engine


class Legs:
    """At most one leg per role at a time; `end_all` leaves nothing behind.

    Attributes:
        error: The last failure below HTTP.
        choice: The last decision with its reservations; None before the first.
    """

    def __init__(self, router: Router, request: GenerateRequest) -> None:
        self._router = router
        self._request = request
        self._legs: dict[Role, Leg] = {}
        self._prefilled_by: DestinationKey | None = None
        self.error: EngineError | None = None
        self.choice: Choice | None = None

    def __getitem__(self, role: Role) -> Leg:
        return self._legs[role]

    def get(self, role: Role) -> Leg | None:
        """The leg, or None before it was chosen and after it ended."""
        return self._legs.get(role)

    def choose(
        self, avoid: frozenset[str], *, may_split: bool, is_handed_off: bool
    ) -> Choice | None:
        """Choose engines and reserve their shares; what the request had before ends.

        Args:
            avoid: Engines that failed it.
            may_split: Whether prefill and decode may be two engines.
            is_handed_off: Whether prefill has answered with a handoff that is still to be taken.
        """
        self.end_all()
        source = self._prefilled_by if is_handed_off else None
        ask = make_ask(self._router, self._request, may_split=may_split, handoff_from=source)
        choice = self._router.choose(ask, avoid, self._request.only_decode)
        self.choice = choice
        if choice is not None:
            decision = choice.decision
            self._legs[Role.DECODE] = Leg(decision.decode)
            if decision.prefill is not None:
                self._legs[Role.PREFILL] = Leg(decision.prefill)
            if source is None:
                # A handoff's blocks are expected of decode when they are sent.
                expect_blocks(self._router, self._request, decision.reader, choice)
        return choice

    def note_prefilled(self) -> None:
        """Prefill has answered as it should."""
        leg = self._legs[Role.PREFILL]
        self._prefilled_by = leg.destination.key
        if self.choice is not None:
            self._router.routing.observe_prefill(self.choice, monotonic())

    def has_other(self, role: Role, avoid: frozenset[str]) -> bool:
        """Whether the role could be given to an engine beside those and its present one."""
        if role is Role.DECODE and self._request.only_decode is not None:
            return False
        avoid = avoid | {self._legs[role].engine.id}
        return self._router.has_other(role, self._request.model, avoid)

    async def send(self, role: Role, body: bytes, *, may_resend: bool) -> Exchange:
        """Send a leg's request and wait for its answer's header.

        Raises:
            EngineError: No answer came.
        """
        leg, request = self._legs[role], self._request
        leg.started = perf_counter()
        leg.sending = sending = Sending()
        destination = leg.destination
        has_ranks = destination.num_ranks > 1 and request.endpoint.takes_rank
        rank = destination.rank if has_ranks else None
        headers = self._router.headers.leg(role, request.header_block, rank)
        leg.exchange = await self._router.upstream.send(
            leg.engine, "POST", request.target, headers, body, sending, may_resend=may_resend
        )
        return leg.exchange

    async def salvage(self, role: Role, limit_bytes: int) -> tuple[int, bytes] | None:
        """Go on reading a cancelled leg's answer, which may be under way; bound the wait outside.

        Returns:
            (status, whole body), or None where there is none.

        Raises:
            EngineError: The engine hung up without an answer.
        """
        leg = self._legs[role]
        connection = leg.sending.connection if leg.sending is not None else None
        if connection is None:
            return None
        if leg.exchange is None:
            leg.exchange = await self._router.upstream.resume(connection)
        body, is_whole = await leg.exchange.read_all(limit_bytes)
        return (leg.exchange.status, body) if is_whole else None

    def fail(self, role: Role, error: EngineError) -> None:
        """Count and log a leg's failure, and hang up."""
        self.error = error
        leg = self._legs[role]
        self.count_error(role, error.kind)
        if isinstance(error, EngineUnreachable):
            self._router.note_unreachable(leg.engine, error)
        else:
            log.warning("%s leg of a %s request: %s", role, self._request.endpoint.name, error)
        if leg.exchange is not None:
            leg.exchange.abort()

    def count_error(self, role: Role, kind: str) -> None:
        """Count an error of a leg's engine."""
        self._router.metrics.errors.add(role.value, kind, self._legs[role].engine.id)

    def elapsed_s(self, role: Role) -> float:
        """Seconds since the leg was sent."""
        return perf_counter() - self._legs[role].started

    def end(self, role: Role) -> None:
        """End a leg: its reservation goes, its connection is kept if its answer was read."""
        if role not in self._legs:
            return
        leg = self._legs.pop(role)
        if self.choice is not None:
            settle = self.choice.release if role is Role.DECODE else self.choice.release_prefill
            settle(monotonic())
        if self._request.prompt is not None:
            # From here on events alone tell; what the engine held before, it does not announce.
            self._router.index.settle(leg.destination.key, self._request.prompt)
        if leg.exchange is not None:
            leg.exchange.release()
        elif leg.sending is not None and leg.sending.connection is not None:
            self._router.upstream.drop(leg.sending.connection)
        if leg.started:
            seconds = perf_counter() - leg.started
            self._router.metrics.leg_seconds.observe(seconds, role.value, leg.engine.id)

    def end_all(self) -> None:
        """End every leg."""
        while self._legs:
            self.end(next(iter(self._legs)))


def cause_of(error: EngineError) -> machine.Cause:
    """A leg's failure in the machine's words."""
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), "bad_answer")


_CAUSES: tuple[tuple[type[EngineError], machine.Cause], ...] = (
    (EngineUnreachable, "unreachable"),
    (EngineTimeout, "timeout"),
    (EngineReset, "reset"),
)
