"""Tokenizers at work: loaded from disk, checked against an engine, run off the event loop."""

from transload_router.io.tokenizer.asked import Ask, EngineTokenizer
from transload_router.io.tokenizer.exactness import Mismatch, Verdict, check_exactness
from transload_router.io.tokenizer.files import load_tokens
from transload_router.io.tokenizer.local import LocalTokenizer, PromptTokenizer
from transload_router.io.tokenizer.reader import PromptReader

__all__ = [
    "Ask",
    "EngineTokenizer",
    "LocalTokenizer",
    "Mismatch",
    "PromptReader",
    "PromptTokenizer",
    "Verdict",
    "check_exactness",
    "load_tokens",
]
