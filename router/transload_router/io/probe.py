"""What the router asks of engines besides its clients' requests: health, models, a handoff."""

import asyncio
import functools
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from transload_router.core.bodies.endpoints import ASK_HANDOFF, COMPLETIONS, HANDOFF_MEMBER
from transload_router.core.bodies.legs import RELEASE_PATH, release_body
from transload_router.core.bodies.members import (
    NotAnObject,
    Raw,
    encode_value,
    is_unset,
    read_items,
    read_members,
    read_object,
    read_str,
    write_members,
)
from transload_router.core.tokens.asking import TOKENIZE_PATH
from transload_router.core.types import Engine
from transload_router.errors import EngineBadAnswer, EngineReset, EngineTimeout, EngineUnreachable
from transload_router.io.events import BadSources, Source, read_sources

_USAGE = re.compile(r"^vllm:kv_cache_usage_perc(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_LOADED = re.compile(
    r"^vllm:external_prefix_cache_hits_total(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE
)


# Answers to probes are read whole, and parsed on the loop; a page of metrics is the longest.
MAX_ANSWER_BYTES = 4 << 20
# Questions of one round share a connection; the next round opens its own. uvicorn closes idle ones
# after 5 s, the usual time between rounds, and a probe that falls on a closing one would take a
# healthy engine for a dead one.
MAX_IDLE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Answer:
    status_code: int
    content: bytes


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """Of an engine's Prometheus page; None where it does not say.

    Attributes:
        kv_usage: Share of KV blocks in use, summed over ranks.
        num_loaded_tokens: Prompt tokens loaded from another engine so far.
    """

    kv_usage: float | None
    num_loaded_tokens: float | None


@dataclass(frozen=True, slots=True)
class Listing:
    """An engine's `/v1/models`.

    Attributes:
        bases: Model id to the id of its base model, None where it is no adapter.
        roots: Of base models, where the engine has them from: a folder or a hub name.
    """

    bases: dict[str, str | None]
    roots: dict[str, str]


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """The system's certificates; reading them takes 50 ms, so once a process."""
    return ssl.create_default_context()


class Prober:
    """Asks engines; one per event loop. Close it when done."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            headers={"accept-encoding": "identity"},
            timeout=timeout_s,
            limits=httpx.Limits(keepalive_expiry=MAX_IDLE_S),
            trust_env=False,
            verify=_tls_context(),
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def check_health(self, engine: Engine, headers: Mapping[str, str]) -> None:
        """Ask `/health`.

        Raises:
            EngineError: It does not answer 200.
        """
        answer = await self._request(engine, "GET", "/health", headers)
        if answer.status_code != 200:
            raise EngineBadAnswer(engine.id, f"/health answers {answer.status_code}")

    async def list_models(self, engine: Engine, headers: Mapping[str, str]) -> Listing | None:
        """What the engine serves; None where it does not tell us.

        Raises:
            EngineError: No answer.
        """
        answer = await self._request(engine, "GET", "/v1/models", headers)
        if answer.status_code != 200:
            return None
        top = read_object(Raw(answer.content)) or {}
        items = read_items(top.get("data", Raw(b"[]"))) or []
        listing = Listing({}, {})
        for fields in (read_object(item) or {} for item in items):
            model_id, root = read_str(fields.get("id")), read_str(fields.get("root"))
            if model_id is None:
                continue
            base = listing.bases[model_id] = read_str(fields.get("parent"))
            if base is None and root is not None:
                listing.roots[model_id] = root
        return listing

    async def find_sources(self, engine: Engine, headers: Mapping[str, str]) -> list[Source] | None:
        """Where the engine publishes its KV events; None where it cannot say (before vLLM 0.30).

        Raises:
            EngineError: No answer, or one that makes no sense.
        """
        answer = await self._request(engine, "GET", "/kv_event_sources", headers)
        if 400 <= answer.status_code < 500:
            return None
        if answer.status_code != 200:
            raise EngineBadAnswer(engine.id, f"/kv_event_sources answers {answer.status_code}")
        try:
            return read_sources(answer.content, engine.address.host)
        except BadSources as error:
            raise EngineBadAnswer(engine.id, f"/kv_event_sources: {error}") from None

    async def tokenize(
        self, engine: Engine, headers: Mapping[str, str], body: bytes
    ) -> bytes | None:
        """Ask `/tokenize`; None where the engine refuses the question.

        Raises:
            EngineError: No usable answer.
        """
        answer = await self._post(engine, TOKENIZE_PATH, headers, body, None)
        if 400 <= answer.status_code < 500:
            return None
        if answer.status_code != 200:
            raise EngineBadAnswer(engine.id, f"{TOKENIZE_PATH} answers {answer.status_code}")
        return answer.content

    async def read_gauges(self, engine: Engine, headers: Mapping[str, str]) -> EngineGauges:
        """Ask `/metrics`.

        Raises:
            EngineError: No answer.
        """
        answer = await self._request(engine, "GET", "/metrics", headers)
        text = answer.content.decode(errors="replace") if answer.status_code == 200 else ""
        return EngineGauges(_sum(_USAGE, text), _sum(_LOADED, text))

    async def ask_handoff(
        self,
        engine: Engine,
        headers: Mapping[str, str],
        model: str,
        prompt: list[int],
        timeout_s: float,
    ) -> bytes | None:
        """Have a prompt prefilled for somebody else.

        Returns:
            The raw handoff, or None where the answer has none.

        Raises:
            EngineError: No usable answer.
        """
        body = write_members(
            {**_one_token(model, prompt), HANDOFF_MEMBER: ASK_HANDOFF, "stream": Raw(b"false")}
        )
        answer = await self._post(engine, COMPLETIONS.path, headers, body, timeout_s)
        if answer.status_code != 200:
            raise EngineBadAnswer(engine.id, f"a prefill leg was answered {answer.status_code}")
        try:
            raw = read_members(answer.content).get(HANDOFF_MEMBER)
        except NotAnObject as error:
            raise EngineBadAnswer(engine.id, str(error)) from None
        return None if raw is None or is_unset(raw) else bytes(raw)

    async def nudge(self, engine: Engine, headers: Mapping[str, str], model: str) -> None:
        """Have the engine take a step of its own.

        Raises:
            EngineError: No answer.
        """
        await self._post(
            engine, COMPLETIONS.path, headers, write_members(_one_token(model, [1])), None
        )

    async def take_handoff(
        self,
        engine: Engine,
        headers: Mapping[str, str],
        model: str,
        prompt: list[int],
        handoff: bytes,
        timeout_s: float,
    ) -> int:
        """Have the prompt decoded from a handoff; the answer's status.

        Raises:
            EngineError: No answer.
        """
        body = write_members({**_one_token(model, prompt), HANDOFF_MEMBER: Raw(handoff)})
        return (await self._post(engine, COMPLETIONS.path, headers, body, timeout_s)).status_code

    async def release(
        self, engine: Engine, headers: Mapping[str, str], model: str, handoff: bytes
    ) -> int:
        """Release a handoff through a decode engine; the answer's status.

        Raises:
            EngineError: No answer.
        """
        body = release_body(model, handoff)
        return (await self._post(engine, RELEASE_PATH, headers, body, None)).status_code

    async def _post(
        self,
        engine: Engine,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float | None,
    ) -> _Answer:
        headers = {**headers, "content-type": "application/json"}
        return await self._request(engine, "POST", path, headers, body, timeout_s)

    async def _request(
        self,
        engine: Engine,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> _Answer:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        url = engine.address.url(path)
        try:
            # httpx's own limits are for each read: an answer that drips would never end.
            async with (
                asyncio.timeout(limit_s),
                self._client.stream(
                    method, url, headers=dict(headers), content=body, timeout=limit_s
                ) as response,
            ):
                return _Answer(response.status_code, await _read(engine, path, response))
        except httpx.ConnectError as error:
            raise EngineUnreachable(engine.id, "no connection") from error
        except (httpx.TimeoutException, TimeoutError) as error:
            raise EngineTimeout(engine.id, f"{path} did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineReset(engine.id, f"{path}: {type(error).__name__}") from error


async def _read(engine: Engine, path: str, response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise EngineBadAnswer(engine.id, f"{path}: its answer is too long")
    return bytes(content)


def _one_token(model: str, prompt: list[int]) -> dict[str, Raw]:
    return {
        "model": encode_value(model),
        "prompt": encode_value(prompt),
        "max_tokens": Raw(b"1"),
        "temperature": Raw(b"0"),
        "ignore_eos": Raw(b"true"),
    }


def _sum(pattern: re.Pattern[str], text: str) -> float | None:
    values = [float(match) for match in pattern.findall(text)]
    return sum(values) if values else None
