"""The check at start-up, against engines that agree, differ, refuse and fail."""

import json
from typing import Any

import pytest

from support.small_tokenizers import made, recorded_files
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.build import TokenizerFiles
from transload_router.core.tokens.job import ChatJob, TextJob
from transload_router.core.tokens.tokens import Tokens
from transload_router.errors import EngineReset
from transload_router.io.tokenizer import Verdict, check_exactness
from transload_router.io.tokenizer.exactness import probes


class _Engine:
    """Answers with another `Tokens`, from the bodies alone."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._tokens = made(files)
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, raw: bytes) -> bytes | None:
        body = json.loads(raw)
        self.bodies.append(body)
        job: TextJob | ChatJob
        if "prompt" in body:
            job = TextJob(body["prompt"], body["add_special_tokens"])
        else:
            names = ("add_generation_prompt", "continue_final_message")
            arguments = {name: body[name] for name in names}
            arguments |= body.get("chat_template_kwargs", {})
            job = ChatJob(body["messages"], body.get("tools"), arguments)
        prompt = self._tokens.prompt(job, Identity("x"))
        if not isinstance(prompt, Prompt):
            return None
        return json.dumps({"tokens": list(memoryview(prompt.tokens).cast("I"))}).encode()


def _with_template(template: str) -> TokenizerFiles:
    files = recorded_files()
    return TokenizerFiles(tokenizer=files.tokenizer, config=files.config, chat_template=template)


@pytest.fixture
def ours() -> Tokens:
    return made(recorded_files())


async def test_the_same_tokenizer_is_exact(ours: Tokens) -> None:
    engine = _Engine(recorded_files())

    verdict = await check_exactness(engine, ours, "m")

    assert verdict == Verdict(num_equal=len(probes()), equal_kinds={TextJob, ChatJob})
    assert verdict.is_exact
    assert {body["model"] for body in engine.bodies} == {"m"}


async def test_another_template_is_named_with_the_first_id_that_differs(ours: Tokens) -> None:
    template = recorded_files().chat_template or ""
    engine = _Engine(_with_template(template + "{% if tools %}.{% endif %}"))

    verdict = await check_exactness(engine, ours)

    assert not verdict.is_exact
    assert [mismatch.probe for mismatch in verdict.mismatches] == ["chat, tools", "chat, calls"]
    first = verdict.mismatches[0]
    prompt = ours.prompt(probes()["chat, tools"], Identity("x"))
    assert isinstance(prompt, Prompt)
    assert (first.index, first.ours) == (prompt.num_tokens, None)
    assert str(first) == (
        f"probe 'chat, tools': token {first.index} is None here and {first.theirs} in the engine"
    )


async def test_another_vocabulary_differs_early(ours: Tokens) -> None:
    files = recorded_files()
    vocabulary = json.loads(files.tokenizer)
    words = vocabulary["model"]["vocab"]
    words["Ġand"], words["Ġso"] = words["Ġso"], words["Ġand"]
    other = TokenizerFiles(
        tokenizer=json.dumps(vocabulary), config=files.config, chat_template=files.chat_template
    )

    verdict = await check_exactness(_Engine(other), ours)

    assert [mismatch.probe for mismatch in verdict.mismatches] == ["text, long"]
    mismatch = verdict.mismatches[0]
    assert mismatch.ours == json.loads(files.tokenizer)["model"]["vocab"]["Ġand"]
    assert mismatch.theirs == words["Ġand"]


async def test_a_token_more_is_found(ours: Tokens) -> None:
    """A model that was trained on is its base, but for what was added to its vocabulary."""
    files = recorded_files()
    vocabulary = json.loads(files.tokenizer)
    number = max(token["id"] for token in vocabulary["added_tokens"]) + 1
    more = {**vocabulary["added_tokens"][0], "id": number, "content": "<|cite|>"}
    vocabulary["added_tokens"].append(more)
    grown = TokenizerFiles(
        tokenizer=json.dumps(vocabulary), config=files.config, chat_template=files.chat_template
    )

    verdict = await check_exactness(_Engine(files), made(grown))

    assert [mismatch.probe for mismatch in verdict.mismatches] == ["text, added tokens"]


async def test_an_engine_that_refuses_is_no_proof(ours: Tokens) -> None:
    async def refuse(_: bytes) -> bytes | None:
        return None

    verdict = await check_exactness(refuse, ours)

    assert verdict.refused == list(probes())
    assert not verdict.is_exact


async def test_what_only_the_engine_knows_is_named_and_no_mismatch(ours: Tokens) -> None:
    strict = "{% for m in messages if m.role == 'tool' %}{{ nothing.x }}{% endfor %}"
    template = recorded_files().chat_template or ""
    lax = made(_with_template(template + strict))

    verdict = await check_exactness(_Engine(recorded_files()), lax)

    assert verdict.unknown == ["chat, calls"]
    assert verdict.is_exact


async def test_an_engine_that_fails_is_the_callers_matter(ours: Tokens) -> None:
    async def fail(_: bytes) -> bytes | None:
        raise EngineReset("prefill-0", "gone")

    async def babble(_: bytes) -> bytes | None:
        return b"{}"

    with pytest.raises(EngineReset):
        await check_exactness(fail, ours)
    with pytest.raises(ValueError, match="expected an answer of /tokenize"):
        await check_exactness(babble, ours)
