"""The `vllm:` series that routers and tests read, in Prometheus's text form."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transload_engine.core.request import Finish
from transload_engine.core.serving import ServingCore


@dataclass(frozen=True)
class _Series:
    """One series of one rank.

    Attributes:
        samples: By suffix (`_total` for counters, `_sum` and `_count` for histograms) and further
            labels, parted by a brace.
    """

    name: str
    kind: str
    samples: dict[str, float]


def exposition(cores: Sequence[ServingCore], model: str) -> bytes:
    """All series of an engine, one sample a rank."""
    lines: list[str] = []
    for of_ranks in zip(*map(_series, cores), strict=True):
        lines.append(f"# TYPE vllm:{of_ranks[0].name} {of_ranks[0].kind}")
        for rank, series in enumerate(of_ranks):
            for suffix, value in series.samples.items():
                name, _, more = suffix.partition("{")
                labels = f'engine="{rank}",model_name="{model}"' + (f",{more}" if more else "")
                lines.append(f"vllm:{series.name}{name}{{{labels}}} {float(value)}")
    return ("\n".join(lines) + "\n").encode()


def _series(core: ServingCore) -> Iterable[_Series]:
    counters, settings, leases = core.counters, core.settings, core.leases
    yield _Series("num_requests_running", "gauge", {"": core.num_running})
    yield _Series("num_requests_waiting", "gauge", {"": core.num_waiting})
    yield _Series("kv_cache_usage_perc", "gauge", {"": core.usage})
    size = f'block_size="{settings.block_size}",num_gpu_blocks="{settings.num_blocks}"'
    yield _Series("cache_config_info", "gauge", {"{" + size: 1})
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
        yield _Series(name, "counter", {"_total": value})
    ends = {f'_total{{finished_reason="{end}"': counters.finished[end] for end in Finish}
    yield _Series("request_success", "counter", dict(ends))
    if settings.has_connector:
        moved = {"_sum": counters.loaded_bytes, "_count": counters.num_loads}
        yield _Series("nixl_bytes_transferred", "histogram", dict(moved))
        failed = {"_total": counters.num_failed_loads}
        yield _Series("nixl_num_failed_transfers", "counter", dict(failed))
        yield _Series("nixl_num_failed_notifications", "counter", {"_total": 0})
        yield _Series("nixl_num_kv_expired_reqs", "counter", {"_total": leases.num_expired})
        late = {"_total": leases.num_late}
        yield _Series("nixl_num_notifications_after_expiry", "counter", dict(late))
