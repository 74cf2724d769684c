"""A small fleet, end to end: complete, deterministic, and with caches that matter."""

import json
from pathlib import Path

import pytest

import simulate
from simulation.baselines import BASELINES
from simulation.fleet import Fleet, Flight, Shape
from simulation.links import Links
from simulation.measure import Histogram, Slo, percentile
from simulation.oracle import Oracle
from simulation.ours import TokenIds
from simulation.profiles import H100_8B
from simulation.scenario import ALL, VARIANTS, Scenario, make_router, nominal_speed, run_one
from simulation.trace import BLOCK_TOKENS, Request
from simulation.workloads import WORKLOADS
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt, pack_tokens

PAIRS = Shape(num_prefill=3, num_decode=2, cache_blocks=600)
MIXED = Shape(num_mixed=4, cache_blocks=600)
SLO = Slo(2.0, 0.1)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return WORKLOADS["agents"](150, 3)


def scenario_of(requests: list[Request], shape: Shape) -> Scenario:
    return Scenario(requests, shape, H100_8B, [], SLO, 1)


def run(requests: list[Request], shape: Shape, policy: str) -> Fleet:
    fleet = Fleet(shape, H100_8B, 1)
    fleet.run(requests, make_router(policy, fleet, 1, TokenIds()))
    return fleet


@pytest.mark.parametrize("shape", [PAIRS, MIXED], ids=str)
@pytest.mark.parametrize("policy", [*ALL, *VARIANTS])
def test_every_policy_serves_every_request(
    requests: list[Request], shape: Shape, policy: str
) -> None:
    fleet = run(requests, shape, policy)

    assert [flight.request for flight in fleet.flights] == requests
    for flight in fleet.flights:
        assert flight.end_s >= flight.first_token_s > flight.request.arrival_s
        assert 0 <= flight.num_cached_tokens < flight.request.num_prompt_tokens
        assert flight.decode >= shape.num_prefill
    for engine in fleet.engines:
        assert engine.cache.num_free == engine.cache.capacity
        assert engine.num_requests == 0
        assert not engine.promised


@pytest.mark.parametrize("policy", ["random", "weighted-scorer", "cost", "oracle"])
def test_equal_seeds_give_equal_figures(requests: list[Request], policy: str) -> None:
    first, second = (
        run_one(scenario_of(requests, PAIRS), policy, "x", 1.0).ttft_mean_s for _ in range(2)
    )

    assert first == second


@pytest.mark.parametrize("shape", [PAIRS, MIXED], ids=str)
def test_who_ignores_caches_hits_less(requests: list[Request], shape: Shape) -> None:
    rates = {
        policy: run_one(scenario_of(requests, shape), policy, "x", 1.0).hit_rate
        for policy in ("round-robin", "weighted-scorer", "cost")
    }

    assert rates["round-robin"] + 0.1 < min(rates["weighted-scorer"], rates["cost"])


def test_the_core_knows_less_without_events(requests: list[Request]) -> None:
    seen = []
    for name in ("cost", "cost, no events"):
        fleet = Fleet(PAIRS, H100_8B, 1)
        router = make_router(name, fleet, 1, TokenIds())
        fleet.run(requests, router)
        held = [len(engine.cache.holders) for engine in fleet.engines]
        seen.append((router, held))

    (whole, held), (without, _) = seen
    assert whole.num_indexed_blocks > 0.9 * max(held)  # type: ignore[attr-defined]
    assert without.num_indexed_blocks == 0  # type: ignore[attr-defined]


def test_keys_of_blocks_are_the_routers_own_chain() -> None:
    request = Request(0, 0.0, 1100, 1, (7, 8, 9))
    tokens = [7] * BLOCK_TOKENS + [8] * BLOCK_TOKENS + [9] * 76
    told = Prompt(Identity("simulated"), pack_tokens(tokens))

    prompt = TokenIds().prompt(request)

    assert prompt.keys(BLOCK_TOKENS) == told.keys(BLOCK_TOKENS)
    assert prompt.num_tokens == told.num_tokens == 1100


def test_the_oracles_price_is_what_an_idle_fleet_takes() -> None:
    request = Request(0, 0.0, 5000, 3, tuple(range(10)))
    shape = Shape(num_prefill=2, num_decode=1, cache_blocks=100)
    fleet = Fleet(shape, H100_8B.without_noise(), 1)
    oracle = Oracle(fleet)
    flight = Flight(request, prefill=1, decode=2)
    best_s = oracle._best(request, {}, 0.0)[0]
    chosen_s = oracle._price_s(request, 1, 2, {}, 0.0)
    assert oracle.regret_s(flight, 0.0) == pytest.approx(chosen_s - best_s)

    class Fixed:
        """Sends it where the price was asked for."""

        def choose(self, flight: Flight, now_s: float) -> None:
            flight.prefill, flight.decode = 1, 2

        def has_prefilled(self, flight: Flight, now_s: float) -> None: ...

        def has_first_token(self, flight: Flight, now_s: float) -> None: ...

        def has_finished(self, flight: Flight, now_s: float) -> None: ...

        def has_cache_events(
            self,
            number: int,
            removed: list[int],
            stored: list[tuple[int | None, list[int]]],
            now_s: float,
        ) -> None: ...

    fleet.run([request], Fixed())

    # An idle engine takes the handoff in at once, where half a step was reckoned with.
    step_s = fleet.profile.times.base_s
    measured_s = fleet.flights[0].time_to_first_token_s
    assert chosen_s == pytest.approx(measured_s + 0.5 * step_s, rel=0.01)


def test_baselines_choose_by_their_rules() -> None:
    fleet = Fleet(Shape(num_mixed=3, cache_blocks=100), H100_8B, 1)
    cache = fleet.engines[1].cache
    cache.take(4)
    cache.name([1, 2, 3, 4])
    held = Request(0, 0.0, 5 * 512, 1, (1, 2, 3, 4, 5))

    def picked(name: str, router_requests: list[int]) -> int:
        router = BASELINES[name](fleet, 1)
        router.num_requests[:] = router_requests
        router.num_blocks[:] = [5 * count for count in router_requests]
        return router.pick(held, fleet.engines).number

    assert picked("least-loaded", [2, 3, 1]) == 2
    assert picked("greedy-prefix", [0, 9, 0]) == 1
    assert picked("overlap-load", [0, 0, 0]) == 1
    assert picked("overlap-load", [0, 1, 0]) == 0
    assert picked("weighted-scorer", [0, 9, 0]) == 1


def test_consistent_hash_keeps_most_prompts_when_an_engine_joins() -> None:
    small, large = (Fleet(Shape(num_mixed=n, cache_blocks=9), H100_8B, 1) for n in (4, 5))
    prompts = [Request(n, 0.0, 1100, 1, (0, n)) for n in range(400)]
    before, after = (
        [BASELINES["consistent-hash"](one, 1).pick(r, one.engines).number for r in prompts]
        for one in (small, large)
    )
    moved = sum(one != other for one, other in zip(before, after, strict=True))

    assert 0.1 * len(prompts) < moved < 0.35 * len(prompts)
    assert all(other == 4 for one, other in zip(before, after, strict=True) if one != other)


def test_transfers_of_one_end_wait_for_each_other() -> None:
    links = Links(0.01, 1e9, num_zones=2, far_factor=4.0)

    assert links.send(0, 2, 1e9, now_s=0.0) == pytest.approx(1.01)
    assert links.send(0, 4, 1e9, now_s=0.0) == pytest.approx(2.02)
    assert links.send(1, 5, 1e9, now_s=0.0) == pytest.approx(1.01)
    assert links.transfer_s(0, 3, 1e9) == pytest.approx(4.01)


def test_nominal_load_counts_what_must_be_computed() -> None:
    requests = [Request(n, 10.0 * n, 1024, 1, (1, 2)) for n in range(2)]
    speed = nominal_speed(requests, Shape(num_prefill=2, num_decode=1), H100_8B, 0.5)

    work_s = H100_8B.times.chunk_s(1024, 0) + H100_8B.times.chunk_s(512, 512)
    assert speed == pytest.approx(0.5 * 2 * 10.0 / work_s)


def test_nominal_load_counts_what_must_be_written() -> None:
    requests = [Request(n, 10.0 * n, 1024, 5000, (n, 9)) for n in range(2)]
    speed = nominal_speed(requests, Shape(num_prefill=9, num_decode=1), H100_8B, 1.0)

    # As many answers side by side as make a step of 50 ms: (50 - 8) ms over each one's share.
    num_writing = 0.042 / (50e-6 + 50e-9 * (1024 + 2500))
    assert speed == pytest.approx(10.0 * num_writing / 0.05 / (2 * 5000))


def test_percentiles_are_ranks() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]

    histogram = Histogram()
    histogram.add(0.01, 90)
    histogram.add(0.1, 10)
    assert histogram.percentile(90) == pytest.approx(0.01, rel=0.01)
    assert histogram.percentile(91) == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_workloads_share_prefixes_and_repeat_by_seed(name: str) -> None:
    one, again = (WORKLOADS[name](300, 5) for _ in range(2))

    assert one == again != WORKLOADS[name](300, 6)
    assert [request.number for request in one] == list(range(300))
    prefix_of: dict[int, int | None] = {}
    for request in one:
        assert len(request.blocks) == -(-request.num_prompt_tokens // BLOCK_TOKENS)
        for parent, block in zip((None, *request.blocks), request.blocks, strict=False):
            assert prefix_of.setdefault(block, parent) == parent


def test_the_program_writes_tables_json_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "small.jsonl"
    lines = [
        {"timestamp": 100 * n, "input_length": 1300, "output_length": 9, "hash_ids": [0, n % 5, n]}
        for n in range(1, 60)
    ]
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    out = tmp_path / "simulate-small.json"
    arguments = ["--trace", str(trace), "--prefill", "2", "--decode", "1", "--jobs", "1"]
    arguments += ["--policies", "random,cost", "--speed", "1,4", "--json", str(out)]

    assert simulate.main([*arguments, "--plots", str(tmp_path)]) == 0

    written = json.loads(out.read_text())
    assert "--trace small.jsonl" in written["command"]
    assert [(one["policy"], one["level"]) for one in written["figures"]] == [
        ("random", "1x"),
        ("cost", "1x"),
        ("random", "4x"),
        ("cost", "4x"),
    ]
    assert all(one["num_requests"] == 59 for one in written["figures"])
    assert (tmp_path / "simulate-small.png").read_bytes()[:4] == b"\x89PNG"
    assert "4x: speed 4.00" in capsys.readouterr().out


def test_the_program_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--trace", "nowhere.jsonl"]) == 2
    assert simulate.main(["--workload", "agents", "--requests", "9", "--policies", "best"]) == 2

    told = capsys.readouterr().err
    assert "no trace at nowhere.jsonl" in told
    assert "no policy 'best'" in told


def test_engines_differ_and_stragglers_more() -> None:
    profile = H100_8B
    factors = [profile.engine_times(n, 1).base_s / profile.times.base_s for n in range(50)]
    assert 0.9 < min(factors) < 0.99 < 1.01 < max(factors) < 1.1
