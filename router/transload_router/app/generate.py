"""The shell of the handoff machine: performs its commands, tells it what happened."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from transload_router.app import relay
from transload_router.app.answers import error_body, error_headers
from transload_router.app.client import CLIENT_LEFT_STATUS, ClientWatch, Send
from transload_router.app.headers import find
from transload_router.app.learning import Learning
from transload_router.app.legs import Legs, cause_of
from transload_router.app.notes import Notes, log_decision
from transload_router.app.prompts import given_ids, wants_ids
from transload_router.app.release import release_handoff
from transload_router.app.request import GenerateRequest
from transload_router.app.state import Router
from transload_router.app.told import read_prefilled, read_usage
from transload_router.core import handoff as machine
from transload_router.core.bodies.legs import decode_body, prefill_body
from transload_router.core.membership import Verdict
from transload_router.core.policy import Decision, Reason
from transload_router.core.refusals import left_handoff_alone
from transload_router.core.types import Headers, Role
from transload_router.errors import (
    EngineBadAnswer,
    EngineError,
    MissingHandoff,
    NoEngine,
    TransloadError,
)
from transload_router.io.upstream import Exchange

log = logging.getLogger("transload")

# Prefill's whole answer: one token and the handoff, whose block ids grow with the prompt (about
# 7 bytes a block). A million-token prompt of 16-token blocks needs 0.5 MB.
MAX_PREFILL_ANSWER_BYTES = 16 << 20
# An error is held to be whole before the client gets it; a longer one (an echo of a huge
# request) is relayed as it comes.
MAX_HELD_ERROR_BYTES = 1 << 20
# After the client left, prefill is given this long to answer before we hang up. Closing at once
# loses the handoff of an engine whose core has finished and whose HTTP answer is not written yet:
# vLLM 0.32.0 then keeps the blocks for the whole lease (6 of 41 closes in the last 10 ms before an
# answer). A half-close does the same, since uvicorn drops its answer. Both legs must be gone
# within a second, so the wait is shorter than that.
ABANDON_TIMEOUT_S = 0.6


# How vLLM answers a request whose KV load failed (kv_load_failure_policy=fail).
_LOAD_FAILED = 500


class Call:
    """One request on its way through the machine.

    Attributes:
        status: What the client got in the end, for the metrics.
        notes: Who did what.
    """

    def __init__(self, router: Router, request: GenerateRequest, send: Send) -> None:
        self._router = router
        self._request = request
        self._send = send
        self._machine = machine.Handoff(router.handoff_policy, request.local_reason is None)
        self._legs = Legs(router, request)
        self._cached_tokens: int | None = None
        self._held: relay.Held | None = None
        self._answer: relay.Answer | None = None
        self._learning = Learning(router, request)
        self._ids: bytes | None = None
        self.status = CLIENT_LEFT_STATUS
        self.notes = Notes(request)

    async def run(self, watch: ClientWatch) -> None:
        """Serve the request to its end; every leg, reservation and handoff is settled after.

        Raises:
            CutShort: The answer broke off in a form that cannot say so.
        """
        try:
            event = await self._perform(self._machine.start(), watch)
            while event is not None:
                event = await self._perform(self._machine.handle(event), watch)
        finally:
            self._legs.end_all()
            self._learning.close()
            if self._machine.handoff is not None:
                # Only the server's own end comes here with one: the machine releases its.
                self._router.metrics.released.add("lease")

    async def _perform(
        self, commands: list[machine.Command], watch: ClientWatch
    ) -> machine.Event | None:
        """Perform commands in order; give the event that one of them led to, if any."""
        event: machine.Event | None = None
        try:
            for command in commands:
                assert event is None, "only a batch's last command may lead to an event"
                event = await _PERFORM[type(command)](self, command)
        except asyncio.CancelledError:
            watch.absorb()
            self.status = CLIENT_LEFT_STATUS
            if self._machine.state in (machine.State.DONE, machine.State.ABANDONING):
                return None
            return machine.ClientGone(self._was_sent())
        return event

    def _was_sent(self) -> bool:
        is_prefill = self._machine.state is machine.State.PREFILLING
        leg = self._legs.get(Role.PREFILL if is_prefill else Role.DECODE)
        if leg is None or leg.sending is None:
            return False
        return leg.sending.may_have_arrived

    async def _choose(self, command: machine.ChooseEngines) -> machine.Event:
        choice = self._legs.choose(
            command.avoid,
            may_split=command.wants_prefill,
            is_handed_off=self._machine.handoff is not None,
        )
        notes = self.notes
        if choice is None:
            notes.decode = None
            return machine.EnginesChosen(None, None)
        decision = choice.decision
        prefill = decision.prefill.engine.id if decision.prefill is not None else None
        notes.decode = decision.decode.engine.id
        if self._machine.handoff is None:
            # Whoever was chosen before has not prefilled it.
            notes.prefill, notes.decision = prefill, decision
            log_decision(self._router.settings, self._router.chance, notes)
        self._learning.begin(choice)
        return machine.EnginesChosen(prefill, notes.decode, self._is_local(command, decision))

    def _is_local(self, command: machine.ChooseEngines, decision: Decision) -> bool:
        """Whether decode alone is the policy's choice, not for want of a prefill engine."""
        if not command.wants_prefill or decision.prefill is not None:
            return False
        if decision.reason is not Reason.NO_PREFILL:
            return True
        # An adapter that no prefill engine has: there is nothing to wait for or to fall back from.
        return self._router.fleet.lacks(Role.PREFILL, self._request.model)

    async def _send_prefill(self, _command: machine.SendPrefill) -> machine.Event:
        request = self._request
        ids = self._ids = self._given_ids(Role.PREFILL)
        asks = ids is None and wants_ids(self._router, request)
        body = prefill_body(request.endpoint, request.members, ids, wants_token_ids=asks)
        try:
            exchange = await self._legs.send(Role.PREFILL, body, may_resend=True)
            return await self._read_prefill(exchange)
        except EngineError as error:
            return self._failed(Role.PREFILL, error)

    async def _read_prefill(self, exchange: Exchange) -> machine.Event:
        if not _is_ok(exchange.status):
            self._legs.count_error(Role.PREFILL, f"status_{exchange.status}")
            self._held = relay.Held(exchange, *await exchange.read_all(MAX_HELD_ERROR_BYTES))
            return machine.PrefillRefused(exchange.status, self._has_other(Role.PREFILL))
        body, is_whole = await exchange.read_all(MAX_PREFILL_ANSWER_BYTES)
        if not is_whole:
            raise EngineBadAnswer(
                self._legs[Role.PREFILL].engine.id, "prefill's answer is too long"
            )
        handoff = self._read_handoff(body)
        self.notes.prefill_seconds = self._legs.elapsed_s(Role.PREFILL)
        self._legs.note_prefilled()
        self._legs.end(Role.PREFILL)
        return machine.PrefillReplied(handoff)

    def _read_handoff(self, body: bytes) -> bytes | None:
        """The handoff of prefill's answer; what else it tells is noted."""
        request = self._request
        told = read_prefilled(request.endpoint, body, self._legs[Role.PREFILL].engine.id)
        self._router.metrics.handoffs.add("issued" if told.handoff else "missing")
        self._cached_tokens = told.num_to_tell
        self._note_read(told.num_cached_tokens, told.num_prompt_tokens)
        if self._ids is None and wants_ids(self._router, request):
            self._ids = told.token_ids
        return told.handoff

    def _note_read(self, num_cached_tokens: int | None, num_prompt_tokens: int | None) -> None:
        """The engine that read the prompt tells what it had of it, and how long it was."""
        self._learning.note_cached(num_cached_tokens)
        self._learning.note_length(num_prompt_tokens)
        self.notes.num_cached_tokens = self._learning.num_cached_tokens

    def _given_ids(self, role: Role) -> bytes | None:
        """The prompt's ids, where the leg's engine may be given them."""
        return given_ids(self._router, self._request, self._legs[role].engine.id)

    async def _send_decode(self, command: machine.SendDecode) -> machine.Event:
        self._legs.end(Role.PREFILL)
        self.notes.has_decoded = True
        self.notes.used_handoff = command.handoff is not None
        request = self._request
        if command.handoff is not None:
            # What prefill read, whoever made it: the blocks are those ids'.
            ids = self._ids
        elif request.endpoint.ids_go == "as_prompt":
            # A completion that one engine serves keeps its text: nothing would be saved.
            ids = None
        else:
            ids = self._given_ids(Role.DECODE)
        body = decode_body(request.endpoint, request.body, request.members, command.handoff, ids)
        self._learning.note_sent(
            has_handoff=command.handoff is not None, is_stream=request.is_stream
        )
        try:
            exchange = await self._legs.send(Role.DECODE, body, may_resend=command.handoff is None)
            return await self._read_decode(exchange)
        except EngineError as error:
            return self._failed(Role.DECODE, error)

    async def _read_decode(self, exchange: Exchange) -> machine.Event:
        status = exchange.status
        if not _is_ok(status):
            self._legs.count_error(Role.DECODE, f"status_{status}")
        if _is_ok(status) and relay.is_event_stream(exchange.headers):
            # Engines send a stream's header before they have a token, or even the blocks. What
            # fails until the first event can still be mended.
            await exchange.connection.await_body()
            self._held = relay.Held(exchange, b"", is_whole=False)
        else:
            limit = self._router.settings.max_answer_bytes
            limit = limit if _is_ok(status) else MAX_HELD_ERROR_BYTES
            self._held = relay.Held(exchange, *await exchange.read_all(limit))
        if self.notes.used_handoff and (_is_ok(status) or status == _LOAD_FAILED):
            self._judge(Verdict.WORKS if _is_ok(status) else Verdict.FAILS)
        if _is_ok(status):
            return machine.DecodeAnswered(status)
        is_untouched = self.notes.used_handoff and left_handoff_alone(
            self._request.endpoint, self._request.members, status, self._held.body
        )
        return machine.DecodeAnswered(status, self._has_other(Role.DECODE), is_untouched)

    def _failed(self, role: Role, error: EngineError) -> machine.Event:
        self._legs.fail(role, error)
        kind = machine.PrefillFailed if role is Role.PREFILL else machine.DecodeFailed
        return kind(cause_of(error), error.was_sent, self._has_other(role))

    def _has_other(self, role: Role) -> bool:
        return self._legs.has_other(role, self._machine.avoid)

    def _judge(self, verdict: Verdict) -> bool:
        """Record what this pair's handoff did; whether that is news."""
        prefill, decode = self.notes.prefill, self.notes.decode
        if prefill is None or decode is None:
            return False
        return self._router.fleet.judge_pair(prefill, decode, verdict)

    async def _relay_decode(self, _command: machine.RelayDecode) -> machine.Event:
        cached = self._cached_tokens if self.notes.used_handoff else None
        num_tokens = self._read_usage()
        answer = self._begin_answer(cached)
        observe = self._router.metrics.chunk_times.observer(self._request.endpoint.name)
        try:
            # Who got a handoff reports what the prefill engine has told already.
            note = None if self.notes.used_handoff else self._learning.note_events
            await answer.relay(self._send, self._note_first, observe, self._request.cork, note)
            if _is_ok(self.status):
                self._learning.note_end(answer.num_intervals if num_tokens is None else num_tokens)
        except EngineError as error:
            self._legs.fail(Role.DECODE, error)
            return machine.DecodeFailed(cause_of(error), error.was_sent)
        finally:
            if answer.response_id is not None and self.notes.decode is not None:
                self._router.owners.remember(answer.response_id, self.notes.decode)
        return machine.DecodeEnded()

    def _note_first(self) -> None:
        """The first event of a stream is with the client."""
        seconds = perf_counter() - self._request.received
        self._router.metrics.ttft.observe(seconds, self._request.endpoint.name)
        self._learning.note_first_token()

    def _read_usage(self) -> int | None:
        """How many tokens a whole answer has; what it says of its prompt is noted."""
        held = self._held
        assert held is not None
        if not held.is_whole or not _is_ok(held.exchange.status):
            return None
        usage = read_usage(held.body)
        if not self.notes.used_handoff:
            self._note_read(usage.num_cached_tokens, usage.num_prompt_tokens)
        return usage.num_answer_tokens

    def _begin_answer(self, num_cached_tokens: int | None) -> relay.Answer:
        held = self._held
        assert held is not None
        self.status = held.exchange.status
        headers = self._router.headers.answer(held.exchange.headers)
        if relay.is_event_stream(headers) and find(headers, b"x-accel-buffering") is None:
            # Proxies of nginx's kind would gather 16 KiB before they pass on the first token.
            headers.append((b"x-accel-buffering", b"no"))
        headers.extend(self.notes.headers())
        was_retried = self._machine.retries_left < 1
        if self.status >= 400 and was_retried and find(headers, b"x-should-retry") is None:
            headers.append((b"x-should-retry", b"false"))
        self._answer = relay.Answer(held, headers, self._request.endpoint, num_cached_tokens)
        return self._answer

    async def _end_stream(self, _command: machine.EndStream) -> None:
        assert self._answer is not None
        assert self._legs.error is not None
        await self._answer.cut(self._send, self._legs.error)

    async def _pass_refusal(self, _command: machine.PassRefusal) -> None:
        answer = self._begin_answer(None)
        try:
            await answer.relay(self._send)
        except EngineError as error:
            self._legs.fail(Role.PREFILL, error)
            await answer.cut(self._send, error)

    async def _fail(self, command: machine.Fail) -> None:
        error = self._own_error(command.reason)
        if not isinstance(error, EngineError):
            self._router.metrics.errors.add("router", error.kind, "none")
        self.status = error.status
        headers: Headers = error_headers(error, was_retried=command.was_retried)
        headers.extend(self.notes.headers())
        body = error_body(error, self._request.endpoint.dialect)
        await relay.send_whole(self._send, error.status, headers, body)

    def _own_error(self, reason: str) -> TransloadError:
        if reason == "missing_handoff":
            return MissingHandoff("prefill gave no handoff, and the router is set to need one")
        if self._legs.error is not None:
            return self._legs.error
        role = Role.DECODE if reason == "no_decode" else Role.PREFILL
        model = self._request.model
        if self._router.fleet.lacks(role, model):
            return NoEngine(f"no {role} engine serves the model {model!r}")
        return NoEngine(f"no {role} engine can take the request now")

    async def _abandon_prefill(self, _command: machine.AbandonPrefill) -> machine.Event:
        """Wait a moment for prefill's answer, to release what it hands off; then hang up."""
        try:
            async with asyncio.timeout(ABANDON_TIMEOUT_S):
                answer = await self._legs.salvage(Role.PREFILL, MAX_PREFILL_ANSWER_BYTES)
            if answer is None or not _is_ok(answer[0]):
                return machine.PrefillFailed("reset", was_sent=True)
            return machine.PrefillReplied(self._read_handoff(answer[1]))
        except (EngineError, TimeoutError):
            return machine.PrefillFailed("reset", was_sent=True)

    async def _close_decode(self, _command: machine.CloseDecode) -> None:
        self._legs.end(Role.DECODE)

    async def _release(self, command: machine.Release) -> None:
        decode = self._machine.decode
        self._router.spawn(release_handoff(self._router, self._request, command.handoff, decode))

    async def _count(self, command: machine.Count) -> None:
        metrics, what = self._router.metrics, command.what
        if what in _RETRIES:
            metrics.retries.add(_RETRIES[what])
        else:
            metrics.fallbacks.add(what)
            self.notes.fallback = what
        if what == "missing_handoff":
            self.notes.is_missing = True
            if self._judge(Verdict.MISSING):
                log.warning("engine %s answers without a handoff", self.notes.prefill)
        log.info("%s request: %s", self._request.endpoint.name, what)


def _is_ok(status: int) -> bool:
    return 200 <= status < 300


_RETRIES = {
    "prefill_retried": "prefill",
    "decode_retried": "decode",
    "handoff_presented_again": "decode_unsent",
}
_PERFORM: dict[type, Callable[[Call, Any], Awaitable[machine.Event | None]]] = {
    machine.ChooseEngines: Call._choose,
    machine.SendPrefill: Call._send_prefill,
    machine.SendDecode: Call._send_decode,
    machine.RelayDecode: Call._relay_decode,
    machine.PassRefusal: Call._pass_refusal,
    machine.Fail: Call._fail,
    machine.EndStream: Call._end_stream,
    machine.AbandonPrefill: Call._abandon_prefill,
    machine.CloseDecode: Call._close_decode,
    machine.Release: Call._release,
    machine.Count: Call._count,
}
