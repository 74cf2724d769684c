"""K01: prefill reads the prompt and makes one token, whatever is asked of the answer.

The engine here refuses what vLLM refuses.
"""

from typing import Any

import pytest

from support.router_server import Fleet
from support.scripted_engine import Leg
from support.vllm_api import (
    APIS,
    CHAT,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    Api,
    asked_length,
    sampling_of,
)
from support.vllm_behaviour import VllmBehaviour

SAMPLING: dict[str, Any] = {
    "min_tokens": 3,
    "stop": ["Höhe "],
    "stop_token_ids": [1, 2],
    "seed": 7,
    "temperature": 0,
}
ANSWER_FIELDS: dict[str, dict[str, Any]] = {
    "chat": {**SAMPLING, "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 4},
    "completions": {**SAMPLING, "logprobs": 3, "max_tokens": 4},
    "responses": {"max_output_tokens": 4, "top_logprobs": 2, "temperature": 0},
    "messages": {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    "generate": {"sampling_params": {**SAMPLING, "max_tokens": 4, "logprobs": 2}},
}
PROMPT_FIELDS: dict[str, dict[str, Any]] = {
    "chat": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"type": "json_object"},
        "mm_processor_kwargs": {"fps": 2},
        "truncate_prompt_tokens": 5,
        "add_generation_prompt": True,
    },
    "completions": {"add_special_tokens": False, "truncate_prompt_tokens": 5},
    "responses": {
        "instructions": "be brief",
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "reasoning": {"effort": "low"},
    },
    "messages": {
        "system": "be brief",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "thinking": {"type": "disabled"},
    },
    "generate": {"features": None, "cache_salt": "s"},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_prefill_takes_what_shapes_the_answer_away(
    fleet: Fleet, api: Api, stream: bool
) -> None:
    more = dict(ANSWER_FIELDS[api.name])
    if stream and api in (CHAT, COMPLETIONS):
        more["stream_options"] = {"include_usage": True}
    answer = await fleet.router.client.post(api.path, json=api.request(stream=stream, **more))
    assert answer.status_code == 200, answer.text
    leg = fleet.p.asked(Leg.PREFILL)[0].request.json()
    assert asked_length(api, leg) == 1
    assert not leg.get("stream")
    assert leg.get("stream_options") is None
    fields = sampling_of(api, leg)
    assert not [n for n in ("min_tokens", "stop", "stop_token_ids") if fields.get(n) is not None]
    sent = fleet.d.asked(Leg.DECODE)[0].request.json()
    del sent["kv_transfer_params"]
    assert sent == api.request(stream=stream, **more)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_both_legs_have_the_same_prompt(fleet: Fleet, api: Api) -> None:
    shaping = PROMPT_FIELDS[api.name]
    answer = await fleet.router.client.post(api.path, json=api.request(**shaping))
    assert answer.status_code == 200, answer.text
    legs = [fleet.p.asked(Leg.PREFILL)[0].request, fleet.d.asked(Leg.DECODE)[0].request]
    for name, value in {**api.minimal, **shaping}.items():
        if name in ("max_tokens", "sampling_params"):
            continue
        assert [leg.json()[name] for leg in legs] == [value, value], name


@pytest.mark.parametrize(
    ("api", "length"),
    [
        (CHAT, {"max_completion_tokens": 500}),
        (CHAT, {"max_tokens": 500}),
        (CHAT, {"max_tokens": 500, "max_completion_tokens": None}),
        (CHAT, {"max_tokens": None}),
        (CHAT, {}),
        (COMPLETIONS, {"max_tokens": None}),
        (COMPLETIONS, {}),
        (RESPONSES, {"max_output_tokens": None}),
        (RESPONSES, {}),
        (MESSAGES, {"max_tokens": 500}),
        (GENERATE, {"sampling_params": {}}),
    ],
)
async def test_one_token_however_the_client_limits(
    fleet: Fleet, api: Api, length: dict[str, Any]
) -> None:
    body = api.request(**length)
    answer = await fleet.router.client.post(api.path, json=body)
    assert answer.status_code == 200, answer.text
    assert asked_length(api, fleet.p.asked(Leg.PREFILL)[0].request.json()) == 1
    sent = fleet.d.asked(Leg.DECODE)[0].request.json()
    del sent["kv_transfer_params"]
    assert sent == body


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_a_first_token_that_ends_the_answer_hands_off_all_the_same(
    fleet: Fleet, api: Api
) -> None:
    for engine in fleet.engines:
        assert isinstance(engine.default, VllmBehaviour)
        engine.default.ends_at_once = True
    answer = await fleet.router.client.post(api.path, json=api.request())
    assert answer.status_code == 200
    assert len(fleet.d.asked(Leg.DECODE)) == 1
    assert "ignore_eos" not in fleet.d.asked(Leg.DECODE)[0].request.json()


@pytest.mark.parametrize(
    ("api", "more", "reason"),
    [
        (CHAT, {"n": 3}, "several_choices"),
        (COMPLETIONS, {"n": 2}, "several_choices"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "several_prompts"),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, "several_prompts"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"prompt_logprobs": 1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 0}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 3}, "prompt_logprobs"),
        (CHAT, {"use_beam_search": True}, "use_beam_search"),
        (GENERATE, {"sampling_params": {"n": 2}}, "several_choices"),
    ],
)
async def test_what_only_one_engine_can_do_is_told(
    fleet: Fleet, api: Api, more: dict[str, Any], reason: str
) -> None:
    answer = await fleet.router.client.post(
        api.path, json=api.request(**more), headers={"x-transload-explain": "1"}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-transload-path"] == "local"
    assert fleet.p.asked() == []
    assert fleet.d.asked()[0].request.json() == api.request(**more)
    scrape = await fleet.router.metrics()
    assert scrape.value("transload_paths_total", endpoint=api.name, reason=reason) == 1


@pytest.mark.parametrize("prompt", [[[1, 2, 3]], ["one"], [5, 6, 7], "text"])
async def test_one_prompt_in_any_spelling_is_split(fleet: Fleet, prompt: object) -> None:
    answer = await fleet.router.client.post(
        COMPLETIONS.path, json=COMPLETIONS.request(prompt=prompt)
    )
    assert answer.status_code == 200
    assert len(fleet.d.asked(Leg.DECODE)) == 1
