"""Numbers as `transload abi` prints them."""

import pytest

from transload_abi.floats import read_float
from transload_abi.picture_words import scale_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f32:3dcccccd", "0.1"),
        ("f32:3dccccce", "0.10000001"),
        ("f32:3f000000", "0.5"),
        ("f32:7f7fffff", "3.4028235e+38"),
        ("f32:00000001", "1e-45"),
        ("f32:00800000", "1.1754944e-38"),
        ("f32:3f9e0419", "1.2345"),
    ],
)
def test_scales_are_the_shortest_text_of_the_same_binary32(text: str, words: str) -> None:
    assert scale_words(read_float(text)) == words
