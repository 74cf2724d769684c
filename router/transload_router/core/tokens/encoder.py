"""Text -> token ids, special token by special token.

**Rules**

1. No merge crosses an added token. A *plain* one (matched in the raw text, without regard to
   words or blanks around it) is a seam: what stands before it and what follows are tokenised
   apart, and their ids joined. The text between two seams is a segment.
2. A segment that is not the first is encoded behind its seam, and the seam's id is taken off
   again: so rules for the start of a text (a blank or `▁` put in front) do not apply to it.
3. Whether 1 and 2 hold for a tokenizer is tried at load, on texts made of its own tokens; where
   they do not, texts are tokenised whole (`is_segmented` tells).
"""

import re
from array import array
from collections.abc import Iterable, Iterator

from tokenizers import AddedToken, Tokenizer

Segment = tuple[str, str]
"""The seam before a text ("" at the start of all), and the text."""

_SAMPLES = (
    "",
    " ",
    "\n",
    "a",
    "user\nWhat is it?",
    " leading and trailing ",
    "\n\n two\r\n lines\t",
    "naïve café, 東京 🙂 e\u0301",
    "x = f(y)  # 12345",
)
# Seams tried against each other at load; tokenizers have up to thousands, all alike.
_MAX_SEAMS_TRIED = 24


class Encoder:
    """A tokenizer that can go on where a known prefix ends; threads may share it.

    Attributes:
        is_segmented: Whether texts are tokenised segment by segment.
        added_tokens: Texts of the added tokens, special ones among them.
        max_chars_per_token: Length of the longest token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes the tokenizer over: its truncation and padding are switched off."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        self._ids = {token.content: number for number, token in added.items()}
        self.added_tokens = tuple(self._ids)
        self._plain = {token.content for token in added.values() if _is_plain(token)}
        raw = [token.content for token in added.values() if not token.normalized]
        self._pattern = _alternation(raw)
        self._around = self._find_around()
        self.max_chars_per_token = max(map(len, tokenizer.get_vocab()), default=1)
        has_seams = self._plain != set() and self._are_seams_firm(added.values())
        self.is_segmented = has_seams and self._is_exact_in_segments()

    def whole(self, text: str, *, add_special_tokens: bool = False) -> bytes:
        """Packed ids of a text, tokenised in one piece.

        Raises:
            UnicodeEncodeError: The text holds half a character.
        """
        return _pack(self._encode(text, add_special_tokens=add_special_tokens))

    def around(self, text_ids: bytes) -> bytes | None:
        """Ids with what the tokenizer puts around a text; None where only it can tell."""
        if self._around is None:
            return None
        before, after = self._around
        return b"".join((before, text_ids, after))

    @property
    def num_before(self) -> int:
        """How many tokens `around` puts before a text."""
        return len(self._around[0]) // 4 if self._around else 0

    def segments(self, text: str, start: int = 0, seam: str = "") -> Iterator[tuple[Segment, int]]:
        """The text from a seam on, cut at seams.

        Args:
            text: All of it.
            start: Where to begin: 0, or the start of a seam.
            seam: The seam that stands before `start`, for the first segment.

        Yields:
            Each segment and where it begins.
        """
        begin = start
        for match in self._pattern.finditer(text, start) if self._pattern else ():
            if match.group() in self._plain:
                yield (seam, text[begin : match.start()]), begin
                seam, begin = match.group(), match.end()
        yield (seam, text[begin:]), begin

    def seam_ids(self, seam: str) -> bytes:
        """The packed id of a seam; nothing for the start of all."""
        return self._ids[seam].to_bytes(4, "little") if seam else b""

    def segment(self, segment: Segment) -> bytes:
        """Packed ids of a segment, without its seam's.

        Raises:
            UnicodeEncodeError: The text holds half a character.
        """
        seam, text = segment
        if not text:
            return b""
        ids = self._encode(seam + text)
        return _pack(ids[1:] if seam else ids)

    def _encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        # Without offsets: a quarter quicker than `encode` (BPE of 2,048 tokens, 379 characters).
        encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encodings[0].ids
        return ids

    def _find_around(self) -> tuple[bytes, bytes] | None:
        """What the tokenizer puts before and after a text, where that does not depend on it."""
        found: tuple[bytes, bytes] | None = None
        for sample in ("a", "b c", "12\n"):
            bare, dressed = self.whole(sample), self.whole(sample, add_special_tokens=True)
            at = _find(dressed, bare)
            if at is None:
                return None
            around = dressed[:at], dressed[at + len(bare) :]
            if found not in (None, around):
                return None
            found = around
        return found

    def _are_seams_firm(self, added: Iterable[AddedToken]) -> bool:
        """Whether no other added token can swallow a seam, now or once the text goes on."""
        others = [t for t in added if not t.normalized and t.content not in self._plain]
        if any(other.content.startswith(tuple(self._plain)) for other in others):
            return False
        takes_blanks = any(other.lstrip or other.rstrip for other in others)
        return not (takes_blanks and any(seam != seam.strip() for seam in self._plain))

    def _is_exact_in_segments(self) -> bool:
        """Rule 3: whether segment by segment is what whole is."""
        seams = sorted(self._plain)
        step = max(1, len(seams) // _MAX_SEAMS_TRIED)
        tried = seams[::step]
        for at, seam in enumerate(tried):
            other = tried[(at + 1) % len(tried)]
            for sample in _SAMPLES:
                last = _SAMPLES[at % len(_SAMPLES)]
                text = f"{sample}{seam}{sample}{other}{last}{seam}{other}{sample}"
                if self.joined(text) != self.whole(text):
                    return False
        return True

    def joined(self, text: str) -> bytes:
        """Packed ids of a text, segment by segment, without any cache."""
        parts = []
        for segment, _ in self.segments(text):
            parts.append(self.seam_ids(segment[0]))
            parts.append(self.segment(segment))
        return b"".join(parts)


def _is_plain(token: AddedToken) -> bool:
    return bool(token.content) and not (
        token.normalized or token.single_word or token.lstrip or token.rstrip
    )


def _alternation(contents: list[str]) -> re.Pattern[str] | None:
    """Matches the leftmost added token, the longest of several, as `tokenizers` does."""
    if not contents:
        return None
    ordered = sorted(filter(None, contents), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)))


def _pack(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()


def _find(haystack: bytes, needle: bytes) -> int | None:
    """Where packed ids stand in others, at a whole id."""
    at = haystack.find(needle)
    while at >= 0 and at % 4:
        at = haystack.find(needle, at + 1)
    return None if at < 0 else at
