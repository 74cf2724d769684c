"""How a scripted engine behaves by default: like vLLM 0.32 with the NIXL connector."""

import asyncio
from dataclasses import dataclass, field

from support import vllm_api
from support.scripted_engine import Exchange, Leg, Request
from support.vllm_api import BY_PATH, MODEL, Api, Body, Generation, dump

JSON = ("content-type", "application/json")
SSE = ("content-type", "text/event-stream; charset=utf-8")


@dataclass(eq=False)
class VllmBehaviour:
    """Answers as vLLM does.

    Attributes:
        models: Objects of `/v1/models`.
        has_connector: Whether prefill hands off.
        tells_cached: Whether the handoff says what was cached (0.32) or not (0.28).
        cached_tokens: What prefill found in its cache.
        ends_at_once: The first greedy token is an end of sequence, unless it is ignored.
        first_word: The first greedy token's text; a stop string that equals it ends at once.
        api_key: Bearer key that every path but /health asks for.
    """

    models: list[Body] = field(default_factory=lambda: [model_card(MODEL)])
    has_connector: bool = True
    tells_cached: bool = True
    cached_tokens: int = 0
    ends_at_once: bool = False
    first_word: str = "Höhe "
    api_key: str | None = None

    async def __call__(self, exchange: Exchange) -> None:
        """Play one request."""
        request = exchange.request
        if not self._is_allowed(request):
            await exchange.answer(401, b'{"error":"Unauthorized"}')
        elif request.path in BY_PATH and request.method == "POST":
            await self._generate(exchange, BY_PATH[request.path])
        else:
            await self._answer_other(exchange)

    def _is_allowed(self, request: Request) -> bool:
        if self.api_key is None or request.path == "/health":
            return True
        return request.header("authorization") == f"Bearer {self.api_key}"

    async def _answer_other(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path == "/v1/models":
            await exchange.answer(200, dump({"object": "list", "data": self.models}))
        elif request.path == "/health":
            await exchange.answer(200, b"", [])
        elif request.path == "/version":
            await exchange.answer(200, b'{"version":"0.32.0"}')
        elif request.path == "/metrics":
            await exchange.answer(200, b"# nothing\n", [("content-type", "text/plain")])
        else:
            await exchange.answer(404, b'{"detail":"Not Found"}')

    async def _generate(self, exchange: Exchange, api: Api) -> None:
        request = exchange.request
        try:
            body = request.json()
        except ValueError as error:
            await exchange.answer(400, api.error(400, f"json: {error}"))
            return
        problem = "not an object" if not isinstance(body, dict) else vllm_api.refusal(api, body)
        if problem is not None:
            await exchange.answer(400, api.error(400, problem))
            return
        generation = self.generation(exchange, api, body)
        reply = api.reply(generation)
        if not body.get("stream"):
            self.issue(exchange, generation.handoff)
            await exchange.answer(200, reply.whole)
        else:
            await stream_events(exchange, reply.events)

    def generation(self, exchange: Exchange, api: Api, body: Body) -> Generation:
        """What this engine makes of an accepted request."""
        fields = vllm_api.sampling_of(api, body)
        asked = vllm_api.asked_length(api, body)
        length = len(vllm_api.WORDS) if asked is None else min(asked, len(vllm_api.WORDS))
        finish = "length" if length == asked else "stop"
        if self._ends_at_once(fields):
            length, finish = 1, "stop"
        options = body.get("stream_options") or {}
        return Generation(
            model=body.get("model") or MODEL,
            finish=finish,
            num_tokens=length,
            num_choices=fields.get("n") or 1,
            cached_tokens=self._cached(exchange.request),
            handoff=self._handoff(exchange, api, finish),
            include_usage=bool(options.get("include_usage")),
        )

    def _cached(self, request: Request) -> int:
        """Prefill counts its cache; decode all that was loaded, unless the handoff says more."""
        if request.handoff is None or request.leg is Leg.PREFILL:
            return self.cached_tokens
        told = request.json()["kv_transfer_params"].get("remote_prefill_cached_tokens")
        return vllm_api.PROMPT_TOKENS if told is None else int(told)

    def _ends_at_once(self, fields: Body) -> bool:
        stops = fields.get("stop") or []
        if self.first_word in ([stops] if isinstance(stops, str) else stops):
            return True
        return self.ends_at_once and not fields.get("ignore_eos")

    def _handoff(self, exchange: Exchange, api: Api, finish: str) -> bytes | None:
        """NIXL hands off what ended by length; Messages cannot ask for that, and hands off."""
        if exchange.request.leg is not Leg.PREFILL or not self.has_connector:
            return None
        if finish != "length" and api is not vllm_api.MESSAGES:
            return None
        cached = self.cached_tokens if self.tells_cached else None
        return exchange.engine.ledger.new(exchange.engine.name, cached)

    @staticmethod
    def issue(exchange: Exchange, handoff: bytes | None) -> None:
        """Book a handoff whose answer leaves now."""
        if handoff is not None and not exchange.is_gone:
            exchange.engine.ledger.issued.append(handoff)


def model_card(name: str) -> Body:
    """One object of `/v1/models`, with fields of vLLM's own."""
    return {
        "id": name,
        "object": "model",
        "created": vllm_api.CREATED,
        "owned_by": "vllm",
        "root": f"/models/{name}",
        "parent": None,
        "max_model_len": 4096,
        "permission": [{"id": "modelperm-1", "allow_sampling": True}],
    }


async def stream_events(
    exchange: Exchange,
    events: tuple[bytes, ...],
    gates: dict[int, asyncio.Event] | None = None,
) -> None:
    """A stream, one chunk an event; the n-th waits for its gate."""
    await exchange.head(200, [SSE, ("transfer-encoding", "chunked")])
    for number, data in enumerate(events):
        if gates and number in gates:
            await gates[number].wait()
        await exchange.chunk(data)
    await exchange.end_chunks()
