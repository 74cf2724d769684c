"""Text to tokens and back: a tokenizer of our own that needs no model, and one from a model folder.

**Rules**

* Equal text gives equal tokens, and a text that begins with another begins with its tokens too,
  as far as the tokenizer's merges allow.
* Decoding the tokens of an answer one by one gives the same text as decoding them together.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from transload_engine.server.template import compile_template

SPACE_MARK: Final = "\u2581"
"""SentencePiece's, in a vocabulary's own spelling of its tokens."""
NO_VALUES: Final[Mapping[str, Any]] = {}

Message = dict[str, Any]


class Tokenizer(Protocol):
    """What an engine needs of a tokenizer.

    Attributes:
        vocab_size: Ids are below this.
        eos: Id that ends an answer.
    """

    vocab_size: int
    eos: int

    @property
    def answer_ids(self) -> Sequence[int]:
        """Ids that simulated answers are made of: plain text each."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        ...

    def name(self, token: int) -> str:
        """One token as logprobs spell it, special ones too."""
        ...

    def encode_chat(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        values: Mapping[str, Any] = NO_VALUES,
    ) -> list[int]:
        """Tokens of a conversation.

        Args:
            messages: As a body has them.
            tools: Likewise.
            add_generation_prompt: Whether an answer is begun.
            values: More for the template to see.

        Raises:
            ValueError: The messages cannot be laid out.
        """
        ...


def text_of(content: Any) -> str:
    """The text of a message's content, a string or parts.

    Raises:
        ValueError: A part is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise ValueError("At most 0 image(s) may be provided in one prompt.")
        texts.append(part["text"])
    return "\n".join(texts)


class ByteTokenizer:
    """One token a byte of UTF-8, and three special ones; further ids stand for words of their own.

    A conversation is its turns, each begun by a special token and ended by another.

    Args:
        vocab_size: At least 259. Prompts of ids may use all of them.
    """

    END, TURN = 1, 2
    FIRST_BYTE, FIRST_WORD = 3, 259

    def __init__(self, vocab_size: int = 32000) -> None:
        if vocab_size < self.FIRST_WORD:
            raise ValueError(f"{vocab_size} ids are fewer than the {self.FIRST_WORD} of bytes")
        self.vocab_size = vocab_size
        self.eos = self.END

    @functools.cached_property
    def answer_ids(self) -> Sequence[int]:
        """See `Tokenizer`."""
        return self.encode("abcdefghijklmnopqrstuvwxyz      ")

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return [byte + self.FIRST_BYTE for byte in text.encode("utf-8", "surrogatepass")]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        raw = bytearray()
        for each in ids:
            if each >= self.FIRST_WORD:
                raw += b" w%d" % each
            elif each >= self.FIRST_BYTE:
                raw.append(each - self.FIRST_BYTE)
        return raw.decode("utf-8", "replace")

    def name(self, token: int) -> str:
        """See `Tokenizer`."""
        return self.decode([token])

    def encode_chat(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        values: Mapping[str, Any] = NO_VALUES,
    ) -> list[int]:
        """See `Tokenizer`."""
        ids: list[int] = []
        turns = [(str(each.get("role")), _turn_text(each)) for each in messages]
        if tools:
            turns.insert(0, ("tools", json.dumps(tools)))
        for role, text in turns:
            ids += [self.TURN, *self.encode(f"{role}\n{text}"), self.END]
        return [*ids, self.TURN, *self.encode("assistant\n")] if add_generation_prompt else ids


def _turn_text(message: Message) -> str:
    calls = message.get("tool_calls")
    text = text_of(message.get("content"))
    return text + json.dumps(calls) if calls else text


class FolderTokenizer:
    """A model's own tokenizer and chat template; needs `tokenizers` and `jinja2`.

    Args:
        folder: With `tokenizer.json`, `tokenizer_config.json`, and the template in that or in
            `chat_template.jinja`; or the path of a `tokenizer.json` among them.

    Raises:
        ValueError: The packages are not installed, or the folder's tokenizer is none.
        OSError: A file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        folder = folder.parent if folder.name == "tokenizer.json" else folder
        self._fast = _fast((folder / "tokenizer.json").read_text())
        config = json.loads((folder / "tokenizer_config.json").read_text())
        template = folder / "chat_template.jinja"
        source = template.read_text() if template.exists() else config.get("chat_template")
        self._template = compile_template(source) if source else None
        self._specials = {
            name: token if isinstance(token, str) else token["content"]
            for name, token in config.items()
            if name in ("bos_token", "eos_token", "unk_token", "pad_token") and token
        }
        eos = self._fast.token_to_id(self._specials.get("eos_token", ""))
        if eos is None:
            raise ValueError(f"{folder} names no end-of-sequence token of its vocabulary")
        self.eos: int = eos
        self.vocab_size: int = self._fast.get_vocab_size()

    @functools.cached_property
    def answer_ids(self) -> Sequence[int]:
        """See `Tokenizer`."""
        return [each for each in range(self.vocab_size) if self._is_plain(each)]

    def _is_plain(self, token: int) -> bool:
        text = self._fast.decode([token])
        return bool(text.strip()) and text.isascii() and text.isprintable()

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        ids: list[int] = self._fast.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        text: str = self._fast.decode(list(ids))
        return text

    def name(self, token: int) -> str:
        """See `Tokenizer`; a space that decoding takes off is put back, as vLLM does."""
        text: str = self._fast.decode([token], skip_special_tokens=False)
        spelled = self._fast.id_to_token(token) or ""
        return f" {text}" if spelled.startswith(SPACE_MARK) and not text.startswith(" ") else text

    def encode_chat(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        values: Mapping[str, Any] = NO_VALUES,
    ) -> list[int]:
        """See `Tokenizer`."""
        if self._template is None:
            raise ValueError("the tokenizer has no chat template")
        seen = {
            **self._specials,
            **values,
            "messages": [_turn(each) for each in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._template(**seen)
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return ids


def _turn(message: Message) -> Message:
    """A message as templates expect it: text, and the arguments of calls as what they are."""
    turn = {**message, "content": text_of(message.get("content"))}
    if isinstance(message.get("tool_calls"), list):
        turn["tool_calls"] = [_called(call) for call in message["tool_calls"]]
    return turn


def _called(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    return {**call, "function": {**function, "arguments": json.loads(arguments or "{}")}}


def _fast(text: str) -> Any:
    try:
        from tokenizers import Tokenizer as FastTokenizer
    except ModuleNotFoundError as error:
        raise ValueError(f"a model's tokenizer needs tokenizers: {error}") from error
    try:
        return FastTokenizer.from_str(text)
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(f"tokenizer.json: {error}") from error


class AnswerText:
    """Text of an answer that grows by tokens; what is no whole character yet is held back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0
        self._end = 0

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens add."""
        self._ids += ids
        told = self._tokenizer.decode(self._ids[self._start : self._end])
        text = self._tokenizer.decode(self._ids[self._start :])
        if text.endswith("�"):
            return ""
        self._start, self._end = self._end, len(self._ids)
        return text[len(told) :]
