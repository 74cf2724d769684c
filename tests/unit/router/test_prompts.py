"""Whose tokens a prompt's are: read, believed, given to engines, or matched as text."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.small_tokenizers import VECTORS, made, recorded_files
from support.vllm_api import APIS, Api, dump
from support.waiting import until
from transload_router.app.prompts import ASKABLE, Prompts, given_ids, prompt_text, wants_ids
from transload_router.app.relay import do_nothing
from transload_router.app.request import GenerateRequest, read_request
from transload_router.app.state import Router
from transload_router.core.bodies.endpoints import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    MESSAGES,
    RESPONSES,
    Endpoint,
)
from transload_router.core.bodies.members import read_members
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.policy.registry import POLICIES
from transload_router.core.prompt import Prompt, pack_tokens
from transload_router.core.tokens.build import TokenizerFiles
from transload_router.core.tokens.job import ChatJob, Reason, TextJob
from transload_router.core.tokens.read import read_prompt
from transload_router.core.types import Engine
from transload_router.errors import EngineReset
from transload_router.io.probe import Prober
from transload_router.io.tokenizer.exactness import probes
from transload_router.settings import Settings

FOLDER = str(VECTORS / "tokenizer")
IDS = [5, 6, 7]


def router(**settings: Any) -> Router:
    router = Router(Settings(prefill=["p:1"], decode=["d:1"], **settings))
    for name in router.fleet.members:
        router.fleet.mark_up(name, {"m": None})
    return router


def request(router: Router, endpoint: Endpoint, **body: Any) -> GenerateRequest:
    raw = msgspec.json.encode({"model": "m", **body})
    return read_request(router, endpoint, endpoint.path, [], raw, 0.0, do_nothing)


def follow_all(router: Router) -> None:
    for name in router.fleet.members:
        router.set_stream((name, 0), StreamState.EXACT)


# Text.

TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": [{"type": "text", "text": "three"}]},
]


def grown(endpoint: Endpoint, num_turns: int) -> dict[str, Any]:
    """A conversation's body after so many turns; whatever else is in it varies."""
    turns = TURNS[:num_turns]
    more = {"temperature": num_turns / 10, "model": "m"}
    if endpoint is COMPLETIONS:
        return {"prompt": " ".join(str(turn["content"]) for turn in turns), **more}
    if endpoint is RESPONSES:
        return {"input": turns, "instructions": "be brief", **more}
    if endpoint is MESSAGES:
        return {"messages": turns, "system": "be brief", **more}
    if endpoint is CHAT:
        return {"messages": turns, "tools": [{"type": "function"}], **more}
    return {"token_ids": list(range(1, 10 * num_turns)), **more}


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda one: one.name)
def test_the_next_turns_text_begins_with_the_last_one(endpoint: Endpoint) -> None:
    texts = [
        prompt_text(endpoint, read_members(dump(grown(endpoint, number)))) for number in (1, 2, 3)
    ]
    assert texts[0]
    assert texts[1].startswith(texts[0])
    assert texts[2].startswith(texts[1])
    assert len(set(texts)) == 3


def test_a_body_without_a_prompt_has_no_text() -> None:
    assert prompt_text(CHAT, {}) == b""


# Reading.


@pytest.mark.parametrize("policy", POLICIES)
async def test_who_chooses_by_load_alone_reads_nothing(policy: str) -> None:
    tables = router(policy=policy)
    asked = request(tables, COMPLETIONS, prompt=IDS)
    await Prompts(tables).read(asked)
    reads = policy in ("cost", "prefix", "session")
    assert asked.prompt_source == ("client" if reads else "unread")
    assert tables.metrics.prompts.value("client") == int(reads)
    assert (asked.text is not None) is reads


async def test_a_look_is_not_counted() -> None:
    tables = router()
    asked = request(tables, COMPLETIONS, prompt=IDS)
    await Prompts(tables).look(asked)
    assert asked.prompt_source == "client"
    assert tables.metrics.prompts.value("client") == 0


async def test_ids_are_the_clients_and_their_number_exact() -> None:
    tables = router()
    asked = request(tables, COMPLETIONS, prompt=IDS, cache_salt="s")
    await Prompts(tables).read(asked)
    assert asked.prompt is not None
    assert (asked.prompt.tokens, asked.prompt.cache_salt) == (pack_tokens(IDS), "s")
    assert asked.num_prompt_tokens == 3
    assert asked.text is not None, "not all caches are followed"
    follow_all(tables)
    again = request(tables, COMPLETIONS, prompt=IDS)
    await Prompts(tables).read(again)
    assert again.text is None


async def test_text_of_a_model_without_a_tokenizer() -> None:
    tables = router()
    follow_all(tables)
    asked = request(tables, COMPLETIONS, prompt="x" * 400)
    await Prompts(tables).read(asked)
    assert (asked.prompt, asked.prompt_source) == (None, "no_tokenizer")
    assert asked.text is not None
    assert asked.num_prompt_tokens == asked.text.num_bytes // 4


@pytest.mark.parametrize(
    ("model", "is_known"), [("m", True), (None, True), ("unheard of", False), ("", False)]
)
async def test_whose_model(model: str | None, is_known: bool) -> None:
    tables = router()
    asked = request(tables, COMPLETIONS, prompt=IDS, model=model)
    await Prompts(tables).read(asked)
    assert (asked.prompt_source == "client") is is_known
    assert (asked.prompt_source == "unknown_model") is not is_known


async def test_no_name_among_several_models_is_nobodys() -> None:
    tables = router()
    tables.fleet.mark_up("decode-0", {"m": None, "n": None, "ada": "m"})
    asked = request(tables, COMPLETIONS, prompt=IDS, model=None)
    await Prompts(tables).read(asked)
    assert asked.prompt_source == "unknown_model"
    adapted = request(tables, COMPLETIONS, prompt=IDS, model="ada")
    await Prompts(tables).read(adapted)
    assert adapted.prompt is not None
    assert adapted.prompt.identity.lora == "ada"


async def test_media_do_not_weigh_by_their_bytes() -> None:
    tables = router()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    content = [{"type": "text", "text": "what is this? " * 20}, picture, picture]
    asked = request(tables, CHAT, messages=[{"role": "user", "content": content}])
    await Prompts(tables).read(asked)
    assert 2_000 < asked.num_prompt_tokens < 2_300


# Ids for engines.


@pytest.mark.parametrize(
    "source", ["client", "router", "unchecked", "engine", "unread", *sorted(ASKABLE)]
)
@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda one: one.name)
def test_who_is_given_ids_and_who_is_asked(endpoint: Endpoint, sends: bool, source: str) -> None:
    tables = router(send_token_ids=sends)
    asked = request(tables, endpoint)
    asked.prompt_source = source
    knows = source in ("client", "router", "unchecked", "engine")
    asked.prompt = Prompt(Identity("m"), pack_tokens(IDS)) if knows else None
    asked.takers = frozenset({"prefill-0"} if source == "router" else ())
    gives = sends and source == "router" and endpoint in (CHAT, COMPLETIONS)
    assert given_ids(tables, asked, "prefill-0") == (b"[5,6,7]" if gives else None)
    assert given_ids(tables, asked, "decode-0") is None
    is_guessed = source in ("router", "unchecked", "engine")
    asks = sends and (source in ASKABLE or is_guessed) and endpoint in (CHAT, COMPLETIONS)
    assert wants_ids(tables, asked) is asks


@pytest.mark.parametrize("source", [Reason.MEDIA, Reason.EMBEDS, Reason.INVALID, Reason.SUFFIX])
def test_prompts_that_are_more_than_text_are_not_asked_for(source: Reason) -> None:
    tables = router()
    asked = request(tables, CHAT)
    asked.prompt_source = source
    assert not wants_ids(tables, asked)


# Whose tokenizer.


class Asked(Prober):
    """Answers `/tokenize` as told, with the router's own ids by default."""

    def __init__(self, answer: Callable[[bytes], bytes | None] | None = None) -> None:
        super().__init__(1.0)
        self.answer = answer
        self.gate: asyncio.Event | None = None
        self.num_asked = 0

    async def tokenize(self, engine: Engine, headers: Any, body: bytes) -> bytes | None:
        self.num_asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.answer is None:
            raise EngineReset(engine.id, "gone")
        return self.answer(body)


def of_bytes(body: bytes) -> bytes:
    return dump({"tokens": list(json.dumps(json.loads(body)).encode())})


def agreeing(files: TokenizerFiles) -> Callable[[bytes], bytes]:
    """The answers of an engine that has the same tokenizer."""
    tokens = made(files)

    def answer(body: bytes) -> bytes:
        members = read_members(body)
        job = read_prompt("chat" if "messages" in members else "completions", members)
        assert isinstance(job, ChatJob | TextJob)
        prompt = tokens.prompt(job, Identity("any"))
        assert isinstance(prompt, Prompt)
        return dump({"tokens": list(memoryview(prompt.tokens).cast("I"))})

    return answer


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    prober = Asked(of_bytes)
    yield prober
    await prober.close()


async def meet(prompts: Prompts, tables: Router, prober: Prober, name: str = "prefill-0") -> None:
    await prompts.meet(tables.fleet.engine(name), {"m": "org/none"}, prober, {})


async def test_engines_that_disagree_at_the_same_time(asked: Asked) -> None:
    """The second verdict comes when the tokenizer is gone already."""
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    asked.answer = lambda body: None
    await meet(prompts, tables, asked)
    assert tables.tokenizers == {"m": "unchecked"}
    asked.answer, asked.gate = of_bytes, asyncio.Event()
    prompts._models["m"].checked.clear()
    both = [asyncio.create_task(meet(prompts, tables, asked, n)) for n in tables.fleet.members]
    await until(lambda: asked.num_asked == len(probes()) + len(both), "both are asked")
    asked.gate.set()
    await asyncio.gather(*both)
    assert "sent to engines" in tables.tokenizers["m"]
    prompts.close()


@pytest.mark.parametrize("fallback", ["engine", "none"])
async def test_another_tokenizer_is_not_used(asked: Asked, fallback: str) -> None:
    tables = router(tokenizer=[FOLDER], tokenizer_fallback=fallback)
    prompts = Prompts(tables)
    await meet(prompts, tables, asked)
    tokenizer, source = prompts._tokenizer(Identity("m"))
    assert (tokenizer is not None, source) == (fallback == "engine", "engine")
    assert tables.defects == []
    num_asked = asked.num_asked
    await meet(prompts, tables, asked, "decode-0")
    assert asked.num_asked == num_asked, "there is nothing left to check"
    prompts.close()


USER = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def takers(prompts: Prompts, tables: Router, **body: Any) -> set[str]:
    """Engines that are given a chat's ids, whose tokens the router knows in any case."""
    one = request(tables, CHAT, **{"messages": USER, **body})
    await prompts.read(one)
    assert one.prompt is not None
    return {name for name in tables.fleet.members if given_ids(tables, one, name) is not None}


async def test_only_engines_that_agreed_are_given_ids(asked: Asked) -> None:
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    asked.answer = agreeing(recorded_files())
    await meet(prompts, tables, asked, "prefill-0")
    assert await takers(prompts, tables) == {"prefill-0"}
    assert tables.tokenizers == {"m": "exact, but unchecked: decode-0"}
    await meet(prompts, tables, asked, "decode-0")
    assert await takers(prompts, tables) == {"prefill-0", "decode-0"}
    assert tables.tokenizers == {"m": "exact"}
    prompts.close()


async def test_engines_that_come_up_together_are_all_checked(asked: Asked) -> None:
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    asked.answer = agreeing(recorded_files())
    await asyncio.gather(*(meet(prompts, tables, asked, name) for name in tables.fleet.members))
    assert tables.tokenizers == {"m": "exact"}
    assert await takers(prompts, tables) == set(tables.fleet.members)
    prompts.close()


async def test_an_engine_that_came_back_has_to_agree_anew(asked: Asked) -> None:
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    asked.answer = agreeing(recorded_files())
    for name in tables.fleet.members:
        await meet(prompts, tables, asked, name)
    prompts.note_return("decode-0")
    assert await takers(prompts, tables) == {"prefill-0"}
    await meet(prompts, tables, asked, "decode-0")
    assert await takers(prompts, tables) == {"prefill-0", "decode-0"}
    prompts.note_return("decode-0")
    asked.answer = of_bytes
    await meet(prompts, tables, asked, "decode-0")
    assert prompts._tokenizer(Identity("m"))[1] == "engine"
    prompts.close()


async def test_an_engine_that_goes_while_it_is_asked_has_not_agreed(asked: Asked) -> None:
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    asked.answer, asked.gate = agreeing(recorded_files()), asyncio.Event()
    meeting = asyncio.create_task(meet(prompts, tables, asked))
    await until(lambda: asked.num_asked == 1, "asked")
    prompts.note_return("prefill-0")
    asked.gate.set()
    await meeting
    assert await takers(prompts, tables) == set()
    prompts.close()


async def test_an_engine_that_compares_texts_only_is_given_no_chats(asked: Asked) -> None:
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    answer = agreeing(recorded_files())
    asked.answer = lambda body: None if b'"messages"' in body else answer(body)
    await meet(prompts, tables, asked)
    assert await takers(prompts, tables) == set()
    text = request(tables, COMPLETIONS, prompt="hello")
    await prompts.read(text)
    assert given_ids(tables, text, "prefill-0") is not None
    prompts.close()


@pytest.mark.parametrize(("choice", "agrees"), [("none", False), ("auto", True), (None, True)])
async def test_declined_tools_may_be_shown_or_not(
    asked: Asked, choice: str | None, agrees: bool
) -> None:
    """An option of the engine decides, of which `/tokenize` cannot be asked."""
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    asked.answer = agreeing(recorded_files())
    await meet(prompts, tables, asked)
    given = await takers(prompts, tables, tools=[TOOL], tool_choice=choice)
    assert given == ({"prefill-0"} if agrees else set())
    assert await takers(prompts, tables, tool_choice=choice) == {"prefill-0"}
    prompts.close()


async def test_a_template_that_asks_for_the_date_is_the_engines_to_render(
    asked: Asked, tmp_path: Path
) -> None:
    """Its clock, or its time zone, may be another."""
    clock = "{% if not date is defined %}{% set date = strftime_now('%d %b') %}{% endif %}"
    files = recorded_files()
    template = clock + str(files.chat_template)
    for path in (VECTORS / "tokenizer").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(template)
    tables = router(tokenizer=[str(tmp_path)])
    prompts = Prompts(tables)
    asked.answer = agreeing(msgspec.structs.replace(files, chat_template=template))
    for name in tables.fleet.members:
        await meet(prompts, tables, asked, name)
    assert tables.tokenizers == {"m": "exact"}
    assert await takers(prompts, tables) == set()
    text = request(tables, COMPLETIONS, prompt="hello")
    await prompts.read(text)
    assert given_ids(tables, text, "prefill-0") is not None
    prompts.close()


async def test_engines_are_asked_once_and_again_after_a_failure(asked: Asked) -> None:
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    asked.answer = None
    for count in (1, 2):
        await meet(prompts, tables, asked)
        assert asked.num_asked == count
    asked.answer = lambda body: b'{"tokens":"none"}'
    await meet(prompts, tables, asked)
    assert asked.num_asked == 3
    assert tables.tokenizers == {"m": "unchecked"}
    asked.answer = lambda body: None
    for _ in range(2):
        await meet(prompts, tables, asked)
    assert asked.num_asked == 3 + len(probes())
    prompts.close()


@pytest.mark.parametrize(
    ("tokenizer", "root", "state"),
    [
        ([], FOLDER, "unchecked"),
        ([], "org/none", "none: "),
        ([FOLDER], "org/none", "unchecked"),
        (["none"], FOLDER, None),
        (["m=" + FOLDER], "org/none", "unchecked"),
        (["of-another=" + FOLDER], "org/none", "none: "),
        (["m=/nowhere"], FOLDER, "none: "),
    ],
)
async def test_which_folder(
    asked: Asked, tokenizer: list[str], root: str, state: str | None
) -> None:
    asked.answer = lambda body: None
    tables = router(tokenizer=tokenizer)
    prompts = Prompts(tables)
    await prompts.meet(tables.fleet.engine("prefill-0"), {"m": root}, asked, {})
    told = tables.tokenizers.get("m")
    assert (told is None) if state is None else (told or "").startswith(state)
    assert tables.defects == []
    prompts.close()


async def test_nobody_is_asked_where_nothing_is_read(asked: Asked) -> None:
    tables = router(tokenizer=[FOLDER], policy="least-loaded")
    await meet(Prompts(tables), tables, asked)
    assert (asked.num_asked, tables.tokenizers) == (0, {})


async def test_bytes_a_token_are_learned_from_what_is_tokenised(
    asked: Asked, tmp_path: Path
) -> None:
    asked.answer = lambda body: None
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    await meet(prompts, tables, asked)
    before = tables.texts.bytes_per_token
    text = request(tables, COMPLETIONS, prompt="the mill by the bridge " * 50)
    await prompts.read(text)
    assert text.prompt_source == "unchecked"
    after = tables.texts.bytes_per_token
    assert after != before
    await prompts.read(request(tables, COMPLETIONS, prompt=[1000] * 500))
    assert tables.texts.bytes_per_token == after
    prompts.close()


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_every_endpoint_is_read(api: Api, asked: Asked) -> None:
    asked.answer = lambda body: None
    tables = router(tokenizer=[FOLDER])
    prompts = Prompts(tables)
    await meet(prompts, tables, asked)
    body = {**api.request(), "model": "m"}
    one = request(tables, ENDPOINTS[api.path], **body)
    await prompts.read(one)
    assert one.prompt_source == ("client" if api.name == "generate" else "unchecked")
    prompts.close()
