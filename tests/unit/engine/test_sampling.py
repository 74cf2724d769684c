"""Bodies' wishes for how tokens are chosen: what becomes of them, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from transload_engine.core.runner import Sampling
from transload_engine.server.sampling import (
    UNSERVED,
    ModelDefaults,
    read_sampling,
    refuse_unserved,
)
from transload_engine.server.wants import Refusal

EOS, VOCABULARY = 2, 100


def read(body: dict[str, Any], defaults: ModelDefaults | None = None, **more: bool) -> Sampling:
    chat = {"is_chat": False, **more}
    return read_sampling(body, defaults or ModelDefaults(), EOS, VOCABULARY, **chat)


def test_what_nobody_said_is_as_in_vllm() -> None:
    assert read({}) == Sampling(temperature=1.0, stop_ids=frozenset({EOS}))


def test_all_that_can_be_said_is_read() -> None:
    body = {
        "temperature": 0.7,
        "top_k": 4,
        "top_p": 0.5,
        "min_p": 0.1,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.1,
        "seed": -7,
        "logprobs": 3,
        "logit_bias": {"5": -1, "6": 250},
        "stop_token_ids": [8, 400],
        "min_tokens": 3,
    }
    assert read(body, ModelDefaults(frozenset({9}), {"top_k": 50})) == Sampling(
        temperature=0.7,
        top_k=4,
        top_p=0.5,
        min_p=0.1,
        presence_penalty=-1,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        seed=-7,
        num_logprobs=3,
        logit_bias=((5, -1.0), (6, 100.0)),
        stop_ids=frozenset({EOS, 8, 9}),
        min_tokens=3,
    )


def test_the_likeliest_token_is_not_cut() -> None:
    greedy = read({"temperature": 1e-6, "top_k": 1, "top_p": 0.5, "min_p": 0.5})
    assert (greedy.temperature, greedy.top_k, greedy.top_p, greedy.min_p) == (0.0, 0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        ({"temperature": 0.001}, "temperature", 0.01),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 101}, "top_k", 100),
        ({"seed": -1}, "seed", None),
        ({"seed": 0}, "seed", 0),
    ],
)
def test_values_that_stand_for_others(body: dict[str, Any], name: str, value: object) -> None:
    assert getattr(read(body), name) == value


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"logprobs": True, "top_logprobs": 4}, 4),
        ({"logprobs": True}, 0),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({}, None),
    ],
)
def test_a_chat_asks_for_logprobs_in_two_fields(body: dict[str, Any], asked: int | None) -> None:
    assert read(body, is_chat=True).num_logprobs == asked


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temperature": 2.5}, "temperature must be in [0, 2], got 2.5."),
        ({"temperature": "1"}, "temperature must be a number, got str"),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0."),
        ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2."),
        ({"min_p": 1.5}, "min_p must be in [0, 1], got 1.5."),
        ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2], got 3."),
        ({"frequency_penalty": -3}, "frequency_penalty must be in [-2, 2], got -3."),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0."),
        ({"n": -1}, "n must be at least 1, got -1."),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2."),
        ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1."),
        ({"seed": 1 << 63}, f"seed must be a signed integer of 64 bits, got {1 << 63}."),
        ({"logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed"),
        ({"logprobs": -1}, "logprobs must be non-negative, got -1."),
        ({"logit_bias": {"x": 1}}, "logit_bias contains key(s) that cannot be converted"),
        ({"logit_bias": {"100": 1}}, "token_id(s) [100] in logit_bias contain out-of-vocab"),
        ({"logit_bias": [1]}, "logit_bias must be an object"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must contain only integers, got ['a']."),
        ({"stop": ["a", ""]}, "stop cannot contain an empty string."),
    ],
)
def test_values_out_of_range_are_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        read(body)
    assert refused.value.status == 400
    assert str(refused.value).startswith(message)


ASKED: dict[str, Any] = {
    "allowed_token_ids": [1],
    "bad_words": ["a"],
    "best_of": 2,
    "chat_template": "{{ x }}",
    "continue_final_message": True,
    "ec_transfer_params": {"a": 1},
    "echo": True,
    "logprob_token_ids": [1],
    "priority": 1,
    "prompt_embeds": "AA==",
    "prompt_logprobs": 0,
    "repetition_detection": {"max_pattern_size": 1},
    "response_format": {"type": "json_object"},
    "return_prompt_text": True,
    "skip_special_tokens": False,
    "stream_interval": 2,
    "structured_outputs": {"json": {}},
    "suffix": "a",
    "thinking_token_budget": 5,
    "tool_choice": "required",
    "truncate_prompt_tokens": 5,
    "use_beam_search": True,
    "watermarking": True,
}


@pytest.mark.parametrize("name", UNSERVED)
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises(Refusal) as refused:
        refuse_unserved({name: ASKED[name]}, is_chat=True)
    assert refused.value.status == 400
    assert refused.value.body["error"]["param"] == name
    assert f"`{name}` is not served" in str(refused.value)


def test_values_that_change_nothing_are_accepted() -> None:
    for name, harmless in UNSERVED.items():
        for value in harmless:
            refuse_unserved({name: value}, is_chat=False)
    refuse_unserved({"add_special_tokens": True, "user": "me", "store": True}, is_chat=False)
    refuse_unserved({"add_special_tokens": False, "tools": [{}]}, is_chat=True)


@pytest.mark.parametrize("is_chat", [False, True])
def test_special_tokens_are_added_where_they_always_are(is_chat: bool) -> None:
    with pytest.raises(Refusal, match="`add_special_tokens` is not served"):
        refuse_unserved({"add_special_tokens": is_chat}, is_chat=is_chat)


def test_a_tool_that_must_be_called_is_refused() -> None:
    forced = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
    with pytest.raises(Refusal, match="`tool_choice`"):
        refuse_unserved(forced, is_chat=True)


def test_defaults_are_read_from_the_models_folder(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    assert ModelDefaults.read(tmp_path, [5]) == ModelDefaults(frozenset({5}))
    file.write_text('{"eos_token_id": [3, 4], "top_k": 20, "max_new_tokens": 9, "do_sample": true}')
    assert ModelDefaults.read(tmp_path, [5]) == ModelDefaults(frozenset({3, 4}), {"top_k": 20}, 9)
    file.write_text('{"eos_token_id": 3}')
    assert ModelDefaults.read(tmp_path).eos_ids == {3}


@pytest.mark.parametrize(
    ("text", "said"), [("[]", "JSON object"), ('{"eos_token_id": "a"}', "'a'")]
)
def test_defaults_that_are_none_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        ModelDefaults.read(tmp_path)
