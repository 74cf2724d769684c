"""The series that routers, operators and tests read, in Prometheus's text form.

What vLLM has is called as there; an engine with a model has `transload_kv_` series for its
transfers, a simulated one those of NIXL.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transload_engine.core.engine_core import EngineCore
from transload_engine.core.model_core import ModelCore
from transload_engine.core.request import Finish
from transload_engine.core.serving import ServingCore
from transload_engine.core.transfers import LoadProblem


@dataclass(frozen=True)
class Series:
    """One series of one rank.

    Attributes:
        name: Whole.
        samples: By suffix (`_total` for counters, `_sum` and `_count` for histograms) and further
            labels, parted by a brace.
    """

    name: str
    kind: str
    samples: dict[str, float]


def exposition(by_rank: Sequence[Iterable[Series]], model: str) -> bytes:
    """An engine's series, the same of each rank, with one sample a rank.

    Args:
        by_rank: Of each.
        model: As it is served.
    """
    lines: list[str] = []
    for of_ranks in zip(*by_rank, strict=True):
        lines.append(f"# TYPE {of_ranks[0].name} {of_ranks[0].kind}")
        for rank, series in enumerate(of_ranks):
            for suffix, value in series.samples.items():
                name, _, more = suffix.partition("{")
                labels = f'engine="{rank}",model_name="{model}"' + (f",{more}" if more else "")
                lines.append(f"{series.name}{name}{{{labels}}} {float(value)}")
    return ("\n".join(lines) + "\n").encode()


def serving_series(core: ServingCore) -> Iterable[Series]:
    """What vLLM counts whatever its connector is."""
    counters, settings = core.counters, core.settings
    yield Series("vllm:num_requests_running", "gauge", {"": core.num_running})
    yield Series("vllm:num_requests_waiting", "gauge", {"": core.num_waiting})
    yield Series("vllm:kv_cache_usage_perc", "gauge", {"": core.usage})
    size = f'block_size="{settings.block_size}",num_gpu_blocks="{settings.num_blocks}"'
    yield Series("vllm:cache_config_info", "gauge", {"{" + size: 1})
    totals = {
        "prefix_cache_queries": counters.prefix_cache_queries,
        "prefix_cache_hits": counters.prefix_cache_hits,
        "external_prefix_cache_queries": counters.external_prefix_cache_queries,
        "external_prefix_cache_hits": counters.external_prefix_cache_hits,
        "num_preemptions": counters.num_preemptions,
        "prompt_tokens": counters.prompt_tokens,
        "prompt_tokens_cached": counters.prompt_tokens_cached,
        "generation_tokens": counters.generation_tokens,
    }
    for name, value in totals.items():
        yield Series(f"vllm:{name}", "counter", {"_total": value})
    ends = {f'_total{{finished_reason="{end}"': counters.finished[end] for end in Finish}
    yield Series("vllm:request_success", "counter", dict(ends))


def nixl_series(core: EngineCore) -> Iterable[Series]:
    """What the NIXL connector counts."""
    counters, leases = core.counters, core.leases
    moved = {"_sum": counters.loaded_bytes, "_count": counters.num_loads}
    yield Series("vllm:nixl_bytes_transferred", "histogram", dict(moved))
    totals = {
        "num_failed_transfers": counters.num_failed_loads,
        "num_failed_notifications": 0,
        "num_kv_expired_reqs": leases.num_expired,
        "num_notifications_after_expiry": leases.num_late,
    }
    for name, value in totals.items():
        yield Series(f"vllm:nixl_{name}", "counter", {"_total": value})


def transfer_series(core: ModelCore) -> Iterable[Series]:
    """What moved to and from other engines, and why something did not."""
    moved = core.transfers
    totals = {
        "loads": moved.num_loads,
        "shared_loads": moved.num_shared_loads,
        "loaded_tokens": moved.num_loaded_tokens,
        "loaded_bytes": moved.num_loaded_bytes,
        "load_seconds": moved.load_seconds,
        "handoffs": moved.num_granted,
    }
    for name, value in totals.items():
        yield Series(f"transload_kv_{name}", "counter", {"_total": value})
    failures = {(str(each), ""): 0 for each in LoadProblem if each is not LoadProblem.ABORTED}
    failures |= {(str(each), path): count for (each, path), count in moved.failures.items()}
    yield Series(
        "transload_kv_load_failures",
        "counter",
        {
            f'_total{{reason="{problem}",path="{path}"': count
            for (problem, path), count in failures.items()
        },
    )
    yield Series("transload_kv_handoffs_held", "gauge", {"": core.num_held})
    ends = {f'_total{{end="{end}"': count for end, count in moved.ends.items()}
    yield Series("transload_kv_handoffs_ended", "counter", dict(ends))
