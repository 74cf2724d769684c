"""Tokenizers of the common shapes, made in memory, small enough for every test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from transload_router.core.tokens.build import TokenizerFiles, build
from transload_router.core.tokens.chat import ChatOptions
from transload_router.core.tokens.tokens import Tokens

VECTORS = Path(__file__).resolve().parents[1] / "protocol" / "vectors"

_TEXTS = [
    "user system assistant What is it? It is what it is, they say.",
    "def read(self, blocks): return [block for block in blocks if block.is_read]",
    "naïve café, Straße 東京都 привет 🙂 x == 12345 and 3.14 or y != 0",
] * 3

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""


def recorded_files() -> TokenizerFiles:
    """The files of the model that the vectors were recorded of."""
    folder = VECTORS / "tokenizer"
    return TokenizerFiles(
        tokenizer=(folder / "tokenizer.json").read_text(encoding="utf-8"),
        config=json.loads((folder / "tokenizer_config.json").read_text()),
        chat_template=(folder / "chat_template.jinja").read_text(),
    )


def noon(form: str) -> str:
    """A clock that stands still."""
    return f"noon, as {form}"


def made(files: TokenizerFiles, options: ChatOptions | None = None) -> Tokens:
    """What the router makes of files."""
    return build(files, noon, options=options)


def byte_level() -> Tokenizer:
    """GPT's kind: bytes, no blank put in front; chat marks are special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return tokenizer


def prefix_space() -> Tokenizer:
    """RoBERTa's kind: bytes, with a blank put in front of what follows a special token."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def llama() -> Tokenizer:
    """Llama 2's kind: `▁` for blanks, one in front of the text alone, BOS, bytes as a fallback."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    marks = [AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")]
    tokenizer.add_special_tokens(marks)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def prepending() -> Tokenizer:
    """Llama 2's older files: the `▁` comes from a normalizer, in front of every piece."""
    tokenizer = llama()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """T5's kind: unigrams over NFKC, EOS behind the text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<unk>", "</s>", "<|im_start|>", "<|im_end|>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's kind: lower case, words, `[CLS]` and `[SEP]` around."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300,
        special_tokens=["[UNK]", "[CLS]", "[SEP]", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    assert cls is not None
    assert sep is not None
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    return tokenizer


def greedy_marks() -> Tokenizer:
    """Byte level; added tokens take blanks, stand alone, are normalised, or begin another."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(
        [
            AddedToken("<mask>", special=True, lstrip=True),
            AddedToken("<tail>", special=True, rstrip=True),
            AddedToken("<word>", special=True, single_word=True),
            AddedToken("<|im_end|>er", special=True),
        ]
    )
    tokenizer.add_tokens([AddedToken("<plain>", normalized=True), AddedToken("block")])
    return tokenizer


def swallowing() -> Tokenizer:
    """Byte level, with a token that begins with a seam and stands alone only."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>user", special=True, single_word=True)])
    return tokenizer


SEGMENTED: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: make
    for make in (
        byte_level,
        prefix_space,
        llama,
        prepending,
        unigram,
        word_piece,
        greedy_marks,
    )
}
"""Shapes whose texts can be tokenised segment by segment."""
