"""The model's numbers against transformers', however the tokens are cut up and put together."""

from functools import cache
from pathlib import Path

import pytest
import torch

from support.tiny_models import FAMILIES, expected_logits, some_tokens, write_checkpoint
from transload_engine.core.runner import Chunk, Sampling
from transload_engine.model.batch import Batch
from transload_engine.model.kv_cache import PagedCache
from transload_engine.model.llama import Llama
from transload_engine.model.placements import KvSettings, ModelName, make_descriptor

PROMPT = some_tokens(40)
BLOCK_SIZE = 4
TOLERANCE = 1e-4
"""Of logits that reach 10 and more: what f32 leaves of another order of additions."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def checkpoint(folder: Path, family: str) -> Path:
    return write_checkpoint(family, folder / family)


def cache_of(model: Llama, layout: str = "LBHNC") -> PagedCache:
    settings = KvSettings(layout=layout, block_size=BLOCK_SIZE, num_blocks=64)
    return PagedCache(make_descriptor(model.config, settings, ModelName("tiny")))


def chunk(tokens: list[int], first: int, end: int, block_ids: range) -> Chunk:
    return Chunk("a", tokens, len(tokens), first, end, block_ids, Sampling())


def by_steps(model: Llama, cuts: list[int]) -> torch.Tensor:
    """The logits behind each cut of the prompt."""
    paged, found = cache_of(model), []
    for first, end in zip([0, *cuts], cuts, strict=False):
        batch = Batch.of([chunk(PROMPT, first, end, range(3, 13))], BLOCK_SIZE)
        found.append(model.logits(batch, paged)[0])
    return torch.stack(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_one_chunk_and_then_token_by_token(folder: Path, family: str) -> None:
    path = checkpoint(folder, family)
    model = Llama.load(path)
    cuts = [25, *range(26, 41)]
    wanted = expected_logits(path, PROMPT)[[cut - 1 for cut in cuts]]
    assert (by_steps(model, cuts) - wanted).abs().max() < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-window"])
@pytest.mark.parametrize("cuts", [[40], [1, 40], [4, 8, 40], [7, 23, 39, 40]])
def test_chunks_of_a_prompt_make_no_difference(folder: Path, family: str, cuts: list[int]) -> None:
    path = checkpoint(folder, family)
    wanted = expected_logits(path, PROMPT)[[cut - 1 for cut in cuts]]
    assert (by_steps(Llama.load(path), cuts) - wanted).abs().max() < TOLERANCE


def test_requests_beside_each_other_are_as_alone(folder: Path) -> None:
    model = Llama.load(checkpoint(folder, "qwen3"))
    together = cache_of(model)
    prompts = [some_tokens(count, seed=count) for count in (1, 4, 9, 30)]
    places = [range(1 + 10 * at, 11 + 10 * at) for at in range(4)]

    def chunks(*spans: tuple[int, int]) -> list[Chunk]:
        return [
            chunk(prompt, *span, place)
            for prompt, span, place in zip(prompts, spans, places, strict=True)
            if span[1] > span[0]
        ]

    model.logits(Batch.of(chunks((0, 0), (0, 3), (0, 0), (0, 13)), BLOCK_SIZE), together)
    mixed = chunks((0, 1), (3, 4), (0, 9), (13, 30))
    found = model.logits(Batch.of(mixed, BLOCK_SIZE), together)
    alone = [
        model.logits(
            Batch.of([chunk(prompt, 0, len(prompt), range(5, 15))], BLOCK_SIZE), cache_of(model)
        )[0]
        for prompt in prompts
    ]
    assert (found - torch.stack(alone)).abs().max() < TOLERANCE


def test_only_chunks_that_want_a_token_have_logits(folder: Path) -> None:
    model = Llama.load(checkpoint(folder, "llama"))
    silent = chunk(PROMPT, 0, 7, range(1, 3))._replace(sampling=None)
    asking = chunk(PROMPT, 0, 9, range(3, 6))
    both = model.logits(Batch.of([silent, asking], BLOCK_SIZE), cache_of(model))
    alone = model.logits(Batch.of([asking], BLOCK_SIZE), cache_of(model))
    assert both.shape == (1, model.config.vocab_size)
    assert (both - alone).abs().max() < TOLERANCE


def test_a_window_hides_what_lies_before_it(folder: Path) -> None:
    model = Llama.load(checkpoint(folder, "mistral-window"))
    window, num_layers = model.config.windows[0], model.config.num_layers
    reach = num_layers * (window - 1)
    changed = [PROMPT[0] + 1, *PROMPT[1:]]
    for end, differs in ((reach + 1, True), (reach + 2, False)):
        logits = [
            model.logits(Batch.of([chunk(of, 0, end, range(1, 11))], BLOCK_SIZE), cache_of(model))
            for of in (PROMPT, changed)
        ]
        assert (not torch.equal(*logits)) is differs


@pytest.mark.parametrize(
    ("first", "end", "num_blocks", "complaint"),
    [
        (3, 3, 10, "a: no tokens 3 to 3 of 40"),
        (39, 41, 11, "a: no tokens 39 to 41 of 40"),
        (0, 9, 2, "a: 2 blocks of 4 for 9 tokens"),
    ],
)
def test_a_chunk_that_cannot_be_is_refused(
    first: int, end: int, num_blocks: int, complaint: str
) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}$"):
        Batch.of([chunk(PROMPT, first, end, range(num_blocks))], BLOCK_SIZE)
