"""Makes the tiny model that the real engines serve: seeded weights, a tokenizer, a chat template.

Runs inside the engine's environment. What it writes depends only on the recipe below and on the
Python whose standard library it reads, so every engine of one machine serves the same model; the
text it writes is noise, but noise that depends on every token of the prompt.

Usage: ``python model.py FOLDER``
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from pathlib import Path
from typing import Any

SEED = 20
VOCAB_SIZE = 2048
MAX_POSITIONS = 4096

INITIALIZER_RANGE = 0.08
"""Wide enough that attention is far from uniform: greedy answers differ between prompts and do not
settle on one token, so that wrong KV shows in the answer (0.02, the usual value, repeats)."""

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]

TRAINING_MODULES = 120
"""Standard-library modules the tokenizer learns from: about 2 MB of text, two seconds."""

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nTools:\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
{{- 'Answer a call as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'tool' %}
{{- '<tool_response>' + message.content + '</tool_response>' }}
{%- elif message.content %}
{{- message.content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string
    else call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def make(folder: Path) -> None:
    """Writes the model; the folder becomes one that ``--model`` accepts, without any download."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    tokenizer.save_pretrained(folder)
    _seeded_model(tokenizer).save_pretrained(folder)


def _train_tokenizer() -> Any:
    """A byte-level BPE: every text has tokens, and every token has bytes."""
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = byte_level(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = sorted(library.glob("*.py"))[:TRAINING_MODULES]
    core.train([str(source) for source in sources], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
    )


def _seeded_model(tokenizer: Any) -> Any:
    """A Llama of 4 layers and about 4 million weights: a 512-token prefill takes some 0.1 s."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    return transformers.LlamaForCausalLM(config).float()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
