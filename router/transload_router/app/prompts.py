"""Prompts of requests as token ids: whose tokenizer reads them, and whether it may be believed."""

import asyncio
import logging
import re
from array import array
from dataclasses import dataclass, field

import msgspec

from transload_router.app.request import GenerateRequest
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import Endpoint
from transload_router.core.bodies.members import Members, read_str
from transload_router.core.index.approximate import Text
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.asking import TOKENIZE_PATH, is_askable
from transload_router.core.tokens.job import (
    ChatJob,
    KnownTokens,
    Reason,
    TokenizeJob,
    Unknown,
)
from transload_router.core.types import Engine, Role
from transload_router.errors import (
    ConfigError,
    EngineBadAnswer,
    EngineError,
    EngineUnreachable,
)
from transload_router.io.probe import Prober
from transload_router.io.tokenizer import (
    EngineTokenizer,
    LocalTokenizer,
    PromptReader,
    PromptTokenizer,
    check_exactness,
    load_tokens,
)
from transload_router.settings import NO_TOKENIZER

log = logging.getLogger("transload")

# Policies for which it matters who holds what.
_READING = frozenset({"cost", "prefix", "session"})
# Reasons for which prefill knows the ids of a prompt of text, and the router does not.
ASKABLE = frozenset(
    {
        Reason.NO_TOKENIZER,
        Reason.BUSY,
        Reason.DEADLINE,
        Reason.ENGINE,
        Reason.RENDERER,
        Reason.TEMPLATE_FAILED,
        Reason.TOO_MUCH,
    }
)
# Sources of ids that guide the choice, and that not every engine may be given.
_GUESSED = frozenset({"router", "unchecked", "engine"})
# Members of parts that are no text (`renderers/chat_utils.py` @ vLLM 0.32.0), also where escapes
# spell them.
_MEDIA = re.compile(
    rb'"(?:(?:image|audio|video)_(?:url|embeds)|image_pil|input_(?:image|audio)|prompt_embeds|file'
    rb'|uuid|[a-z_]*\\u00[0-9A-Fa-f]{2}(?:[a-z_]|\\u00[0-9A-Fa-f]{2})*)"\s*:'
)
_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class _Model:
    """One model's tokenizer.

    Attributes:
        own: The router's, None where it has none or may not use it.
        equal: Engines whose answers to the probes were equal to its ids: the kinds of prompt that
            were compared.
        asked: The engine's, where the router's is not to be used.
        checked: Engines that were asked since they last came up.
        loading: Held while it is loaded.
        is_loaded: Whether that was tried.
    """

    own: LocalTokenizer | None = None
    equal: dict[str, frozenset[type[TokenizeJob]]] = field(default_factory=dict)
    asked: EngineTokenizer | None = None
    checked: set[str] = field(default_factory=set)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_loaded: bool = False


class Prompts:
    """Reads prompts; one per router. `start` on its loop, `close` when done."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._configured = router.settings.tokenizers()
        self._models: dict[str, _Model] = {}
        self._reader = PromptReader()
        self._reads = router.settings.policy in _READING

    def close(self) -> None:
        """End all tokenizers."""
        self._reader.close()
        for model in self._models.values():
            if model.own is not None:
                model.own.close()

    # Whose tokenizer.

    async def meet(
        self, engine: Engine, models: dict[str, str], prober: Prober, headers: dict[str, str]
    ) -> None:
        """An engine has answered a probe: load and check its base models' tokenizers.

        Args:
            engine: The engine.
            models: Where it has its base models from, by name.
            prober: To ask it.
            headers: To ask it with.

        Raises:
            EngineError: It could not be asked.
        """
        if not self._reads:
            return
        for name, root in models.items():
            identity = self._router.fleet.identity(name)
            if identity is None:
                continue
            model = self._models.setdefault(identity.model, _Model())
            async with model.loading:
                # Engines come up together; whoever comes while it is loaded is checked, too.
                if not model.is_loaded:
                    model.is_loaded = True
                    await self._load(model, name, identity, root)
            if model.own is not None and engine.id not in model.checked:
                model.checked.add(engine.id)
                await self._check(model, name, engine, prober, headers)

    def note_return(self, engine_id: str) -> None:
        """It was down or started over, perhaps as a process with another template or tokenizer.

        Until it has answered the probes anew, it is given no ids.
        """
        for model in self._models.values():
            model.checked.discard(engine_id)
            model.equal.pop(engine_id, None)

    async def _load(self, model: _Model, name: str, identity: Identity, root: str) -> None:
        configured = self._configured_for(identity)
        if configured == NO_TOKENIZER:
            return
        try:
            # A large vocabulary takes a second.
            tokens = await asyncio.to_thread(load_tokens, configured or root)
        except ConfigError as error:
            level = logging.ERROR if configured else logging.INFO
            log.log(level, "no tokenizer for %s, prompts are matched as text: %s", name, error)
            self._router.tokenizers[name] = f"none: {error}"
            return
        model.own = LocalTokenizer(tokens)
        self._router.tokenizers[name] = "unchecked"
        log.info("tokenizer of %s: %s", name, configured or root)

    def _configured_for(self, identity: Identity) -> str | None:
        for name, folder in self._configured.items():
            if name is None or self._router.fleet.identity(name) == Identity(identity.model):
                return folder
        return None

    async def _check(
        self, model: _Model, name: str, engine: Engine, prober: Prober, headers: dict[str, str]
    ) -> None:
        async def ask(body: bytes) -> bytes | None:
            return await prober.tokenize(engine, headers, body)

        own = model.own
        assert own is not None
        try:
            verdict = await check_exactness(ask, own.tokens, name)
        except (EngineError, ValueError) as error:
            model.checked.discard(engine.id)
            log.warning("the tokenizer of %s cannot be checked: %s", name, error)
            return
        if model.own is not own or engine.id not in model.checked:
            # Another engine's answers were others meanwhile, or this one went and came back.
            return
        if verdict.mismatches:
            for mismatch in verdict.mismatches:
                log.error("tokenizer of %s is not that of %s: %s", name, engine.id, mismatch)
            self._distrust(model, name)
            return
        if verdict.is_exact:
            model.equal[engine.id] = frozenset(verdict.equal_kinds)
            log.info("tokenizer of %s: equal to that of %s", name, engine.id)
        else:
            # Nothing speaks against it; the engine is given no ids of it all the same.
            log.warning("the tokenizer of %s cannot be checked: %s refuses", name, engine.id)
        self._router.tokenizers[name] = self._standing(model, name)

    def _standing(self, model: _Model, name: str) -> str:
        """Of a tokenizer that no engine's differs from, in words for an operator."""
        able = [one for role in Role for one in self._router.fleet.candidates(role, name)]
        unchecked = sorted({one.engine.id for one in able} - model.equal.keys())
        if not model.equal:
            return "unchecked"
        return f"exact, but unchecked: {', '.join(unchecked)}" if unchecked else "exact"

    def _distrust(self, model: _Model, name: str) -> None:
        assert model.own is not None
        model.own.close()
        model.own = None
        model.equal.clear()
        if self._router.settings.tokenizer_fallback == "engine":
            model.asked = EngineTokenizer(_Asker(self._router, name), name)
        use = "sent to engines to tokenise" if model.asked else "matched as text"
        self._router.tokenizers[name] = f"not the engine's: prompts are {use}"
        log.error("prompts of %s are %s", name, use)

    # Reading.

    async def read(self, request: GenerateRequest) -> None:
        """Find a request's token ids, or its text, or neither; count which."""
        if self._reads:
            await self.look(request)
            self._router.metrics.prompts.add(request.prompt_source)

    async def look(self, request: GenerateRequest) -> None:
        """The same for a request that is not counted."""
        router = self._router
        if not self._reads:
            return
        identity = router.fleet.identity(request.model) if request.model else None
        if request.model is None and (only := router.fleet.only_model()) is not None:
            identity = router.fleet.identity(only)
        if identity is None:
            request.prompt_source = "unknown_model"
        else:
            await self._read_tokens(request, identity)
        if request.prompt is None or not router.is_all_followed():
            request.text = _read_text(request, identity or Identity(request.model or ""))
        if request.prompt is not None:
            request.num_prompt_tokens = request.prompt.num_tokens
            if request.text is not None and request.prompt_source != "client":
                router.texts.observe_length(request.text.num_bytes, request.num_prompt_tokens)
        elif request.text is not None:
            num_bytes, num_media = _measure_text(request)
            estimate = num_bytes / router.texts.bytes_per_token + num_media * _MEDIA_TOKENS
            request.num_prompt_tokens = max(1, int(estimate))

    async def _read_tokens(self, request: GenerateRequest, identity: Identity) -> None:
        found, is_heavy = await self._reader.read(
            request.endpoint.name, request.members, request.body
        )
        if isinstance(found, Unknown):
            request.prompt_source = found.reason.value
            return
        if isinstance(found, KnownTokens):
            request.prompt = Prompt(identity, found.tokens, found.cache_salt)
            request.prompt_source = "client"
            return
        tokenizer, source = self._tokenizer(identity)
        prompt: Prompt | Unknown = Unknown(Reason.NO_TOKENIZER)
        if tokenizer is not None:
            prompt = await tokenizer.tokenize(found, identity, is_heavy=is_heavy)
        if isinstance(prompt, Unknown):
            # Nobody may have looked into the messages yet.
            reason = Reason.MEDIA if _may_have_media(request) else prompt.reason
            request.prompt_source = reason.value
            return
        request.prompt, request.prompt_source = prompt, source
        if source == "router":
            request.takers = self._takers(found, self._models[identity.model])

    def _takers(self, job: TokenizeJob, model: _Model) -> frozenset[str]:
        """Engines that surely make these ids of the job themselves.

        The probes cannot tell what `/tokenize` cannot be told, nor whose clock is right.
        """
        own = model.own
        if own is None or (isinstance(job, ChatJob) and not is_askable(job)):
            return frozenset()
        if isinstance(job, ChatJob) and own.tokens.reads_clock:
            return frozenset()
        return frozenset(engine for engine, kinds in model.equal.items() if type(job) in kinds)

    def _tokenizer(self, identity: Identity) -> tuple[PromptTokenizer | None, str]:
        model = self._models.get(identity.model)
        if model is None:
            return None, ""
        if model.own is not None:
            return model.own, "router" if model.equal else "unchecked"
        return model.asked, "engine"


def given_ids(router: Router, request: GenerateRequest, engine_id: str) -> bytes | None:
    """The prompt's ids as a JSON array, where an engine may be given them instead of the text."""
    prompt = request.prompt
    if prompt is None or request.endpoint.ids_go == "nowhere" or engine_id not in request.takers:
        return None
    if not router.settings.send_token_ids:
        return None
    ids = array("I")
    ids.frombytes(prompt.tokens)
    return _ENCODER.encode(ids.tolist())


def wants_ids(router: Router, request: GenerateRequest) -> bool:
    """Whether prefill, where it is given no ids, is to tell the prompt's, for decode's sake."""
    return (
        router.settings.send_token_ids
        and request.endpoint.ids_go != "nowhere"
        and (request.prompt_source in ASKABLE or request.prompt_source in _GUESSED)
    )


def _may_have_media(request: GenerateRequest) -> bool:
    """Whether something beside text may be in a chat: ids must not stand beside it."""
    messages = request.members.get("messages")
    return messages is not None and _MEDIA.search(messages) is not None


def _read_text(request: GenerateRequest, identity: Identity) -> Text | None:
    text = prompt_text(request.endpoint, request.members)
    return Text(identity, text, read_str(request.members.get("cache_salt"))) if text else None


# An image is some 256 to 2,000 tokens, whatever its bytes (vision towers of current models).
_MEDIA_TOKENS = 1_000
# Media within the request, as data URLs or bare base64.
_DATA = re.compile(rb'"(?:data:[a-z]+/[^"]*|[A-Za-z0-9+/=]{4096,})"')


def _measure_text(request: GenerateRequest) -> tuple[int, int]:
    """Bytes of a prompt's text without the media in it, and how many media there are."""
    assert request.text is not None
    text = prompt_text(request.endpoint, request.members)
    if b";base64," not in text and b'"input_audio"' not in text:
        return request.text.num_bytes, 0
    media = _DATA.findall(text)
    return len(text) - sum(map(len, media)), len(media)


def prompt_text(endpoint: Endpoint, members: Members) -> bytes:
    """The raw text that a prompt is made of; a conversation's next turn begins with it."""
    parts = [members[name] for name in endpoint.prompt_members if name in members]
    # Without what closes a list or a string, which the next turn does not have there.
    return b"\n".join([bytes(part).rstrip(b' \t\r\n]"') for part in parts])


class _Asker:
    """Asks whichever engine of a model is there; see `io.tokenizer.Ask`."""

    def __init__(self, router: Router, model: str) -> None:
        self._router = router
        self._model = model

    async def __call__(self, body: bytes) -> bytes | None:
        router = self._router
        members = router.fleet.candidates(Role.DECODE, self._model)
        if not members:
            raise EngineUnreachable(self._model, "no engine is there to tokenise")
        engine = min(members, key=lambda one: router.load.of_engine(one.engine)).engine
        headers = b"content-type: application/json\r\n" + router.headers.probe_block(engine.role)
        exchange = await router.upstream.send(engine, "POST", TOKENIZE_PATH, headers, body)
        answer, is_whole = await exchange.take_all(_MAX_ANSWER_BYTES)
        if 400 <= exchange.status < 500:
            return None
        if exchange.status != 200 or not is_whole:
            raise EngineBadAnswer(engine.id, f"{TOKENIZE_PATH} answers {exchange.status}")
        return answer


# A million ids.
_MAX_ANSWER_BYTES = 16 << 20
