"""Texts cut at seams: when that is done, and that it changes nothing."""

import pytest
from tokenizers import AddedToken

from support.small_tokenizers import SEGMENTED, byte_level, llama, swallowing, unigram, word_piece
from transload_router.core.tokens.encoder import Encoder, Segment
from transload_router.core.tokens.prefixes import Prefixes

_CHAT = "<|im_start|>user\nis it?<|im_end|>\n"


def test_a_text_is_cut_at_seams() -> None:
    encoder = Encoder(byte_level())

    assert list(encoder.segments(f"a{_CHAT}")) == [
        (("", "a"), 0),
        (("<|im_start|>", "user\nis it?"), 13),
        (("<|im_end|>", "\n"), 34),
    ]
    assert next(encoder.segments(f"a{_CHAT}", 24)) == (("", ""), 24)


@pytest.mark.parametrize("name", SEGMENTED)
def test_each_shape_can_be_cut(name: str) -> None:
    encoder = Encoder(SEGMENTED[name]())

    assert encoder.is_segmented
    assert encoder.joined(_CHAT * 2) == encoder.whole(_CHAT * 2)


def test_a_segment_in_the_middle_is_not_tokenised_as_a_beginning() -> None:
    """Only a text that begins gets a blank in front, in Llama's shape."""
    encoder = Encoder(llama())

    assert encoder.segment(("", "is")) != encoder.segment(("<|im_end|>", "is"))
    assert encoder.segment(("<|im_end|>", "")) == b""


def test_a_tokenizer_without_special_tokens_is_not_cut() -> None:
    tokenizer = byte_level()
    bare = type(tokenizer)(tokenizer.model)

    assert not Encoder(bare).is_segmented
    assert list(Encoder(bare).segments("a")) == [(("", "a"), 0)]


def test_a_seam_that_may_grow_into_another_token_is_none() -> None:
    assert not Encoder(swallowing()).is_segmented


def test_blanks_may_not_be_both_a_seam_and_taken_by_a_neighbour() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(
        [AddedToken("\n\n", special=True), AddedToken("<tail>", special=True, rstrip=True)]
    )

    assert not Encoder(tokenizer).is_segmented


class _Forgetful(Encoder):
    """Segments that are not what they are in the whole text."""

    def segment(self, segment: Segment) -> bytes:
        return super().segment(("", segment[1]))


def test_a_tokenizer_that_looks_across_seams_is_found_out() -> None:
    assert Encoder(llama()).is_segmented
    assert not _Forgetful(llama()).is_segmented


def test_what_stands_around_a_text() -> None:
    bare, bos, eos = Encoder(byte_level()), Encoder(llama()), Encoder(unigram())
    both = Encoder(word_piece())

    assert bare.around(b"text") == b"text"
    assert bos.around(b"text") == b"\x01\x00\x00\x00text"
    assert eos.around(b"text") == b"text\x01\x00\x00\x00"
    assert both.around(b"text") == b"\x01\x00\x00\x00text\x02\x00\x00\x00"
    assert (bare.num_before, bos.num_before, eos.num_before, both.num_before) == (0, 1, 0, 1)
    for encoder in (bare, bos, eos, both):
        text = encoder.whole("is it")
        assert encoder.around(text) == encoder.whole("is it", add_special_tokens=True)


def test_settings_of_the_file_that_would_cut_or_pad_are_switched_off() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)

    assert len(Encoder(tokenizer).whole("is what it is")) == len(
        Encoder(byte_level()).whole("is what it is")
    )


def test_records_are_not_made_of_texts_shorter_than_a_chunk() -> None:
    assert Prefixes(1 << 20).find(b"a" * 5000) is None
