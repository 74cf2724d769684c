"""Steps of several requests: who gets a token, and what requests see of each other."""

import pytest

from support.tiny_models import generate, some_tokens, write_checkpoint
from transload_engine.core.runner import Chosen, Chunk, Sampling
from transload_engine.model.kv_cache import PagedCache
from transload_engine.model.llama import Llama
from transload_engine.model.placements import KvSettings, ModelName, make_descriptor
from transload_engine.model.runner import TorchRunner

PROMPT = some_tokens(19)
BLOCKS = list(range(1, 9))
GREEDY = Sampling()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    return Llama.load(write_checkpoint("llama", tmp_path_factory.mktemp("model") / "llama"))


@pytest.fixture
def runner(model: Llama) -> TorchRunner:
    return new_runner(model)


def new_runner(model: Llama, seed: int | None = None) -> TorchRunner:
    settings = KvSettings(block_size=4, num_blocks=32)
    descriptor = make_descriptor(model.config, settings, ModelName("tiny"))
    return TorchRunner(model, PagedCache(descriptor), seed)


def prompt_chunk(sampling: Sampling | None, name: str = "a", first_block: int = 1) -> Chunk:
    blocks = range(first_block, first_block + 5)
    return Chunk(name, PROMPT, len(PROMPT), 0, len(PROMPT), blocks, sampling)


def test_a_step_of_nothing(runner: TorchRunner) -> None:
    assert runner.run([]) == []


def test_each_chunk_has_its_answer_in_order(runner: TorchRunner) -> None:
    other = some_tokens(6, seed=3)
    chunks = [
        prompt_chunk(None, "a", 1),
        Chunk("b", other, 6, 0, 6, [6, 7], GREEDY),
        prompt_chunk(None, "c", 8),
        prompt_chunk(GREEDY, "d", 13),
    ]
    found = runner.run(chunks)
    alone = generate(runner, other, 1, [20, 21]), generate(runner, PROMPT, 1, range(20, 25))
    assert found == [None, Chosen(alone[0][0]), None, Chosen(alone[1][0])]


def test_a_prefix_that_another_request_wrote(runner: TorchRunner) -> None:
    wanted = generate(runner, PROMPT, 5, range(11, 19))
    runner.run([prompt_chunk(None)._replace(end=12)])
    assert generate(runner, PROMPT, 5, [1, 2, 3, 24, 25, 26, 27], first=12) == wanted


def test_a_prefix_that_another_request_writes_in_the_same_step(runner: TorchRunner) -> None:
    wanted = generate(runner, PROMPT, 1, range(11, 19))
    reader = prompt_chunk(GREEDY)._replace(request_id="b", first=12, block_ids=[1, 2, 3, 24, 25])
    (chosen, _) = runner.run([reader, prompt_chunk(None)._replace(end=12)])
    assert chosen == Chosen(wanted[0])


def test_a_preempted_request_goes_on_where_it_was(runner: TorchRunner) -> None:
    wanted = generate(runner, PROMPT, 5, BLOCKS)
    tokens = [*PROMPT, *wanted[:3]]
    again = Chunk("a", tokens, len(PROMPT), 0, len(tokens), range(11, 17), GREEDY, num_drawn=3)
    assert runner.run([again]) == [Chosen(wanted[3])]


def test_penalties_count_the_answer_alone(runner: TorchRunner) -> None:
    (likeliest,) = generate(runner, PROMPT, 1, BLOCKS)
    penalised = Sampling(presence_penalty=100.0)
    as_prompt = Chunk("a", [*PROMPT, likeliest], 20, 19, 20, BLOCKS, penalised)
    (unpenalised,) = runner.run([as_prompt._replace(sampling=GREEDY)])
    assert runner.run([as_prompt]) == [unpenalised]
    assert unpenalised is not None
    biased = Sampling(presence_penalty=100.0, logit_bias=((likeliest, 50.0),))
    (chosen,) = runner.run([as_prompt._replace(sampling=biased)])
    assert chosen == Chosen(likeliest)
    (chosen,) = runner.run([as_prompt._replace(sampling=biased, num_prompt=19)])
    assert chosen != Chosen(likeliest)


def test_a_seed_draws_the_same_whoever_is_beside(model: Llama) -> None:
    drawn = Sampling(temperature=3.0, seed=7)
    alone = new_runner(model).run([prompt_chunk(drawn)])
    other = prompt_chunk(Sampling(temperature=3.0), "b", 6)
    beside = new_runner(model).run([other, prompt_chunk(drawn)])
    assert beside[1:] == alone


def test_a_seed_draws_otherwise_for_each_token(model: Llama) -> None:
    drawn = Sampling(temperature=30.0, seed=7)
    chunks = [prompt_chunk(drawn)._replace(num_drawn=number) for number in range(8)]
    found = [new_runner(model).run([chunk])[0] for chunk in chunks]
    assert len(set(found)) > 4


def test_without_a_seed_the_engines_own_decides(model: Llama) -> None:
    drawn = prompt_chunk(Sampling(temperature=30.0))
    runs = [
        [new.run([drawn])[0] for _ in range(8)]
        for new in (new_runner(model, 1), new_runner(model, 1), new_runner(model, 2))
    ]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) > 4


def test_logprobs_are_reported_where_asked_for(runner: TorchRunner) -> None:
    silent, asking = runner.run(
        [prompt_chunk(GREEDY), prompt_chunk(Sampling(num_logprobs=2), "b", 6)]
    )
    assert silent is not None
    assert asking is not None
    assert silent == Chosen(asking.token_id)
    assert asking.rank == 1
    assert len(asking.alternatives) == 2
    assert asking.alternatives[0] == (asking.token_id, asking.logprob)
