"""The legs of one request: chosen, reserved, sent, ended, whatever happens."""

import logging
from dataclasses import dataclass
from time import perf_counter

from transload_router.app.request import GenerateRequest
from transload_router.app.state import Router
from transload_router.core.load import Reservation
from transload_router.core.policy import LegRequest
from transload_router.core.types import Engine, Role
from transload_router.errors import EngineError, EngineUnreachable
from transload_router.io.upstream import Exchange, Sending

log = logging.getLogger("transload")


@dataclass(slots=True)
class Leg:
    """One leg: its engine, its share of the engine's load, its exchange.

    Attributes:
        started: `perf_counter` when it was sent, 0.0 before.
    """

    engine: Engine
    reservation: Reservation
    started: float = 0.0
    sending: Sending | None = None
    exchange: Exchange | None = None


class Legs:
    """At most one leg per role at a time; `end_all` leaves nothing behind.

    Attributes:
        error: The last failure below HTTP.
    """

    def __init__(self, router: Router, request: GenerateRequest) -> None:
        self._router = router
        self._request = request
        self._legs: dict[Role, Leg] = {}
        self.error: EngineError | None = None

    def __getitem__(self, role: Role) -> Leg:
        return self._legs[role]

    def get(self, role: Role) -> Leg | None:
        """The leg, or None before it was chosen and after it ended."""
        return self._legs.get(role)

    def choose(self, role: Role, avoid: frozenset[str]) -> Engine | None:
        """Choose an engine and reserve its share; what the role had before ends."""
        self.end(role)
        request = self._request
        num_tokens = request.num_prompt_tokens
        if role is Role.DECODE:
            num_tokens += request.num_answer_tokens
        wanted = LegRequest(
            role, request.model, request.num_prompt_tokens, request.num_answer_tokens
        )
        only = request.only_decode if role is Role.DECODE else None
        engine = self._router.choose(wanted, avoid, only)
        if engine is not None:
            self._legs[role] = Leg(engine, self._router.load.reserve(engine, num_tokens))
        return engine

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
        headers = self._router.headers.leg(role, request.header_block)
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
        leg.reservation.release()
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
