"""`config.json` of every family, in either spelling, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.tiny_models import write_checkpoint
from transload_engine.model.config import ModelConfig, UnusableModel, read_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def read(folder: Path, **fields: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(LLAMA | fields))
    return read_config(folder)


def test_what_is_left_out_follows_from_the_rest(folder: Path) -> None:
    config = read(folder)
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert read(folder, architectures=["Qwen3ForCausalLM"]).head_dim == 128
    assert config.windows == (0, 0, 0)
    assert config.eos_ids == ()
    assert (config.rope.kind, config.rope.theta) == ("default", 10000.0)
    assert not any((config.ties_embeddings, config.has_qkv_bias, config.has_mlp_bias))


def test_one_token_or_several_end_an_answer(folder: Path) -> None:
    assert read(folder, eos_token_id=7).eos_ids == (7,)
    assert read(folder, eos_token_id=[7, 9]).eos_ids == (7, 9)


def test_both_spellings_of_the_rotation_are_one(folder: Path) -> None:
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    scaling = {"type": "linear", "factor": 2.0}
    new = read(folder, rope_parameters=parameters)
    assert read(folder, rope_scaling=scaling, rope_theta=500.0) == new
    assert new.rope.parameters == parameters


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_the_original_length_is_the_models_unless_told(folder: Path, kind: str) -> None:
    given = {"rope_type": kind, "factor": 2.0}
    if kind == "llama3":
        given |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    name = "original_max_position_embeddings"
    assert read(folder, rope_parameters=given).rope.parameters[name] == 512
    given[name] = 64
    assert read(folder, rope_parameters=given).rope.parameters[name] == 64
    # Beside the parameters it has precedence, as in transformers.
    assert read(folder, rope_parameters=given, **{name: 32}).rope.parameters[name] == 32


def test_mistral_looks_back_over_one_window_in_all_layers(folder: Path) -> None:
    mistral = ["MistralForCausalLM"]
    assert read(folder, architectures=mistral, sliding_window=9).windows == (9, 9, 9)
    assert read(folder, architectures=mistral, sliding_window=None).windows == (0, 0, 0)


def test_qwen_looks_back_over_a_window_where_it_is_told_to(folder: Path) -> None:
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9, "max_window_layers": 2}
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert read(folder, **qwen).windows == (0, 0, 0)
    assert read(folder, **qwen, use_sliding_window=True).windows == (0, 0, 9)
    chosen = read(folder, **qwen, use_sliding_window=True, layer_types=kinds)
    assert chosen.windows == (9, 0, 0)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, r"architectures: \['GemmaForCausalLM'\] is none"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type: 'dynamic' is none of"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn lacks factor"),
        ({"rope_parameters": {"mrope_section": [1, 2]}}, "default has an unknown mrope_section"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor is no number: '2'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
        ({"hidden_act": "gelu"}, r"'gelu' - at `\$\.hidden_act`"),
        ({"quantization_config": {"bits": 4}}, r"Expected `null`, .* at `\$\.quantization_config`"),
        ({"vocab_size": None}, r"Expected `int`, got `null` - at `\$\.vocab_size`"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 do not divide 4 heads"),
        ({"head_dim": 15}, "head_dim: 15"),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"]},
            "layer_types: this architecture has one type",
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "layer_types": ["full_attention"],
                "use_sliding_window": True,
            },
            "layer_types: 1 of 3 layers",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    folder: Path, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UnusableModel, match=rf"config\.json: .*{complaint}"):
        read(folder, **fields)


def test_a_file_that_transformers_wrote(tmp_path: Path) -> None:
    config = read_config(write_checkpoint("qwen3", tmp_path / "qwen3"))
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 24)
    assert config.has_head_norms
    assert config.eos_ids == (2,)
    assert config.rope.parameters == {"rope_type": "default", "rope_theta": config.rope.theta}
