"""The router's own core, driven as the service drives it: index by events, choice, observations.

Nothing of the truth is handed over. The core sees prompts as token ids, engines' events when they
arrive, and the moments of answers; it does not see an answer's length before its end.
"""

import random
from dataclasses import dataclass

from simulation.fleet import Fleet, Flight
from simulation.trace import BLOCK_TOKENS, Request
from transload_router.core.index.approximate import ApproximateIndex, Text
from transload_router.core.index.hits import Match
from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.events import Removed, Stored
from transload_router.core.policy.pricing import Weights
from transload_router.core.policy.types import Ask, Destination, FleetView
from transload_router.core.prompt import Prompt
from transload_router.core.routing import Choice, Routing
from transload_router.core.types import Address, DestinationKey, Engine, Role

IDENTITY = Identity("simulated")

PREDICTION_S = 60.0
"""How long the index believes that a prompt on its way will be held, without an event; longer than
queues of an engine that is not overloaded."""

SWEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Variant:
    """Ours, whole or with a part taken out.

    Attributes:
        policy: Name of the policy.
        has_events: Whether engines' events reach the index; without them it is the index of texts
            that were sent, as for engines that publish none.
        has_predictions: Whether the index is told what was sent where.
        weights: Of the policy `cost`.
    """

    policy: str = "cost"
    has_events: bool = True
    has_predictions: bool = True
    weights: Weights | None = None


class TokenIds:
    """Synthetic tokens: a block's are its id, over and over, so equal blocks have equal tokens.

    Prompts are kept, since every policy and level asks for the same ones again.
    """

    def __init__(self) -> None:
        self._prompts: dict[tuple[tuple[int, ...], int], Prompt] = {}
        self._texts: dict[tuple[int, ...], Text] = {}

    def prompt(self, request: Request) -> Prompt:
        """The prompt of a request, its block keys computed by the router's own chain."""
        key = (request.blocks, request.num_prompt_tokens)
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = _KeyedPrompt(request)
        return prompt

    def text(self, request: Request) -> Text:
        """The same as text, four bytes a token."""
        text = self._texts.get(request.blocks)
        if text is None:
            text = self._texts[request.blocks] = Text(IDENTITY, _whole_tokens(request))
        return text


class _KeyedPrompt(Prompt):
    """A prompt that keeps its keys and not its tokens, which would be 50 KB each."""

    __slots__ = ("_length",)

    def __init__(self, request: Request) -> None:
        super().__init__(IDENTITY, _whole_tokens(request))
        super().keys(BLOCK_TOKENS)
        self.tokens = b""
        self._length = request.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Length in tokens."""
        return self._length

    def keys(self, block_size: int, group_idx: int = 0) -> list[int]:
        """See `Prompt.keys`; of the fleet's block size.

        Of another one, which the index guesses until an engine's first event, there are none.
        """
        return super().keys(block_size, group_idx) if block_size == BLOCK_TOKENS else []


class CoreRouter:
    """The core in a fleet."""

    def __init__(self, fleet: Fleet, seed: int, variant: Variant, tokens: TokenIds) -> None:
        self._variant = variant
        self._tokens = tokens
        self._index = Index()
        self._texts = ApproximateIndex()
        self.routing = Routing(
            random.Random(f"router-{seed}").random, variant.policy, variant.weights
        )
        self._destinations = [
            Destination(
                Engine(
                    id=f"engine-{engine.number}",
                    role=Role.PREFILL if engine.does_hand_off else Role.DECODE,
                    address=Address("127.0.0.1", 8000 + engine.number),
                )
            )
            for engine in fleet.engines
        ]
        for destination in self._destinations:
            self._index.add_owner(destination.key, IDENTITY.model, 0)
        self._numbers = {one.key: number for number, one in enumerate(self._destinations)}
        num_prefill = fleet.shape.num_prefill
        self._view = FleetView(self._destinations[:num_prefill], self._destinations[num_prefill:])
        self._swept_s = 0.0

    @property
    def num_indexed_blocks(self) -> int:
        """Entries of the index; a block counts once for every engine that holds it."""
        return self._index.num_blocks

    def choose(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        request = flight.request
        prompt = self._tokens.prompt(request)
        if now_s - self._swept_s > SWEEP_S:
            self._index.expire(now_s)
            self._swept_s = now_s
        ask = Ask(
            model=IDENTITY.model,
            num_prompt_tokens=request.num_prompt_tokens,
            match=self._match(request, prompt),
            is_exact=self._variant.has_events,
            affinity=prompt.keys(BLOCK_TOKENS)[1] if request.num_whole_blocks > 1 else None,
        )
        choice = self.routing.choose(ask, self._view, now_s)
        assert choice is not None, "every engine of a simulated fleet is up"
        decision = choice.decision
        flight.token = choice
        flight.decode = self._numbers[decision.decode.key]
        if decision.prefill is not None:
            flight.prefill = self._numbers[decision.prefill.key]
        for one in {decision.prefill or decision.decode, decision.decode}:
            self._predict(one.key, request, prompt, now_s)

    def _match(self, request: Request, prompt: Prompt) -> Match:
        if self._variant.has_events:
            return self._index.match(prompt)
        return self._texts.match(self._tokens.text(request))

    def _predict(self, key: DestinationKey, request: Request, prompt: Prompt, now_s: float) -> None:
        if not self._variant.has_events:
            self._texts.predict(key, self._tokens.text(request))
        elif self._variant.has_predictions:
            self._index.predict(key, prompt, now_s, PREDICTION_S)

    def has_prefilled(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        choice = _choice(flight)
        self.routing.observe_prefill(choice, now_s)
        choice.release_prefill(now_s)
        self.routing.observe_sent(choice, now_s)

    def has_first_token(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        self.routing.observe_first_token(_choice(flight), now_s)

    def has_finished(self, flight: Flight, now_s: float) -> None:
        """See `Router`."""
        choice = _choice(flight)
        self.routing.observe_end(choice, now_s, flight.request.num_answer_tokens)
        choice.release(now_s)
        flight.token = None

    def has_cache_events(
        self,
        number: int,
        removed: list[int],
        stored: list[tuple[int | None, list[int]]],
        now_s: float,
    ) -> None:
        """See `Router`."""
        if not self._variant.has_events:
            return
        key = self._destinations[number].key
        if removed:
            self._index.apply(key, 0, Removed(list(removed)))
        for parent, blocks in stored:
            token_ids: list[int] = []
            for block in blocks:
                token_ids += [_token_id(block)] * BLOCK_TOKENS
            self._index.apply(key, 0, Stored(list(blocks), parent, token_ids, BLOCK_TOKENS))


def _choice(flight: Flight) -> Choice:
    assert isinstance(flight.token, Choice)
    return flight.token


def _token_id(block: int) -> int:
    return block & 0xFFFFFFFF


def _whole_tokens(request: Request) -> bytes:
    blocks = request.blocks[: request.num_whole_blocks]
    return b"".join(_token_id(block).to_bytes(4, "little") * BLOCK_TOKENS for block in blocks)
