"""The bound on goodput: each of its three reasons by itself."""

import pytest

from simulation.bound import bound_of
from simulation.measure import Slo
from simulation.profiles import StepTimes
from simulation.trace import Request

# A millisecond per prompt token, ten per answer token; nothing else.
TIMES = StepTimes(0.0, 1e-3, 0.0, 1e-2, 0.0)
SLO = Slo(2.0, 0.1)


def test_all_of_what_is_offered_where_there_is_time() -> None:
    requests = [Request(n, float(n), 512, 10, (n,)) for n in range(11)]
    most = bound_of(requests, 2, TIMES, SLO, 1.0)
    assert (most.offered_per_s, most.too_long_share) == (1.1, 0.0)
    assert most.goodput_per_s == pytest.approx(1.1)
    assert bound_of(requests, 2, TIMES, SLO, 2.0).goodput_per_s == pytest.approx(2.2)


def test_a_prompt_that_takes_too_long_alone_is_never_good() -> None:
    blocks = tuple(range(8))
    requests = [Request(n, float(n), 4096, 1, blocks) for n in range(2)]
    # The second one finds all but its last block.
    most = bound_of(requests, 9, TIMES, SLO, 1.0)
    assert most.too_long_share == 0.5
    assert most.goodput_per_s == pytest.approx(1.0)


def test_the_cheapest_fill_the_time_there_is() -> None:
    """One engine, a span of a second and the 2 s that the last may wait: 3 s of work."""
    sizes = (500, 500, 500, 1900, 1900)
    requests = [Request(n, n / 4, size, 10, (n,) * 4) for n, size in enumerate(sizes)]
    assert bound_of(requests, 1, TIMES, SLO, 1.0).goodput_per_s == pytest.approx(3.0)
    assert bound_of(requests, 2, TIMES, SLO, 1.0).goodput_per_s == pytest.approx(5.0)
