"""What is counted, and the page that shows it, as Prometheus' own parser reads it."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from transload_router.app.metrics import CacheRow, EngineRow, Metrics, Tally, Times

ROWS: list[EngineRow] = [
    ("prefill-0", "prefill", 2, 300, True),
    ("decode-0", "decode", 0, 0, False),
]


def rows() -> Iterator[EngineRow]:
    return iter(ROWS)


def no_caches() -> Iterator[CacheRow]:
    return iter(())


def page(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, then by label values in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            key = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def test_a_tally_counts_by_labels() -> None:
    tally = Tally("x", "x", ("leg", "engine"))
    tally.add("prefill", "a")
    tally.add("prefill", "a")
    tally.add("decode", "b")
    assert (tally.value("prefill", "a"), tally.value("decode", "b")) == (2, 1)
    assert tally.value("decode", "a") == 0
    tally.forget("engine", "a")
    assert (tally.value("prefill", "a"), tally.value("decode", "b")) == (0, 1)


def test_times_fall_into_buckets_whose_bounds_belong_to_them() -> None:
    times = Times("t", "t", ("leg",), (0.1, 1.0))
    observe = times.observer("p")
    for seconds in (0.05, 0.1, 0.5, 2.0):
        observe(seconds)
    times.observe(1.0, "p")
    times.observe(9.0, "d")
    [family] = times.collect()
    values = {(s.name, s.labels["leg"], s.labels.get("le")): s.value for s in family.samples}
    assert values == {
        ("t_bucket", "p", "0.1"): 2,
        ("t_bucket", "p", "1.0"): 4,
        ("t_bucket", "p", "+Inf"): 5,
        ("t_count", "p", None): 5,
        ("t_sum", "p", None): 3.65,
        ("t_bucket", "d", "0.1"): 0,
        ("t_bucket", "d", "1.0"): 0,
        ("t_bucket", "d", "+Inf"): 1,
        ("t_count", "d", None): 1,
        ("t_sum", "d", None): 9.0,
    }


def test_each_attribute_is_the_series_of_its_name() -> None:
    """The tables of names are unpacked by position."""
    metrics = Metrics(rows, no_caches)
    metrics.requests.add("chat", "m", "200")
    metrics.errors.add("decode", "engine_reset", "decode-0")
    metrics.paths.add("chat", "local", "logprobs")
    metrics.fallbacks.add("empty_prefill")
    metrics.retries.add("prefill")
    metrics.handoffs.add("issued")
    metrics.released.add("lease")
    metrics.decisions.add("split")
    metrics.prompts.add("router")
    metrics.cached_tokens.add("predicted", amount=64)
    metrics.predictions.add("events", "exact")
    metrics.prediction_errors.add("concurrent", amount=32)
    metrics.kv_events.add("prefill-0", "gap")
    metrics.snapshots.add("loaded")
    metrics.ttft.observe(0.2, "chat")
    metrics.leg_seconds.observe(3.0, "prefill", "prefill-0")
    metrics.chunk_times.observe(0.02, "messages")
    samples = page(metrics)
    assert samples["transload_requests_total"] == {("200", "chat", "m"): 1}
    assert samples["transload_errors_total"] == {("decode-0", "engine_reset", "decode"): 1}
    assert samples["transload_paths_total"] == {("chat", "local", "logprobs"): 1}
    assert samples["transload_fallbacks_total"] == {("empty_prefill",): 1}
    assert samples["transload_retries_total"] == {("prefill",): 1}
    assert samples["transload_handoffs_total"] == {("issued",): 1}
    assert samples["transload_handoffs_released_total"] == {("lease",): 1}
    assert samples["transload_decisions_total"] == {("split",): 1}
    assert samples["transload_prompts_total"] == {("router",): 1}
    assert samples["transload_cached_tokens_total"] == {("predicted",): 64}
    assert samples["transload_cache_predictions_total"] == {("events", "exact"): 1}
    assert samples["transload_cached_tokens_error_total"] == {("concurrent",): 32}
    assert samples["transload_kv_stream_events_total"] == {("prefill-0", "gap"): 1}
    assert samples["transload_index_snapshots_total"] == {("loaded",): 1}
    assert samples["transload_time_to_first_token_seconds_sum"] == {("chat",): 0.2}
    assert samples["transload_leg_seconds_sum"] == {("prefill-0", "prefill"): 3.0}
    assert samples["transload_inter_chunk_seconds_sum"] == {("messages",): 0.02}


def test_caches_are_read_from_the_live_index() -> None:
    caches: list[CacheRow] = [("prefill-0", 1, "exact", 41, {"GPU": 5, "CPU": 2})]
    samples = page(Metrics(rows, lambda: iter(caches)))
    assert samples["transload_kv_stream_state"] == {("prefill-0", "1", "exact"): 1}
    assert samples["transload_kv_events_last_sequence"] == {("prefill-0", "1"): 41}
    assert samples["transload_index_blocks"] == {
        ("prefill-0", "1", "GPU"): 5,
        ("prefill-0", "1", "CPU"): 2,
    }


def test_engines_are_read_from_the_live_tables() -> None:
    live: list[EngineRow] = list(ROWS)
    metrics = Metrics(lambda: iter(live), no_caches)
    samples = page(metrics)
    p, d = ("prefill-0", "prefill"), ("decode-0", "decode")
    assert samples["transload_engine_requests_in_flight"] == {p: 2, d: 0}
    assert samples["transload_engine_reserved_tokens"] == {p: 300, d: 0}
    assert samples["transload_engine_up"] == {p: 1, d: 0}
    del live[1]
    assert page(metrics)["transload_engine_up"] == {p: 1}


def test_requests_in_flight() -> None:
    metrics = Metrics(rows, no_caches)
    metrics.in_flight.enter("chat")
    metrics.in_flight.enter("chat")
    metrics.in_flight.enter("other")
    metrics.in_flight.leave("chat")
    metrics.in_flight.leave("other")
    assert page(metrics)["transload_requests_in_flight"] == {("chat",): 1, ("other",): 0}


def test_a_gone_engine_takes_its_series_along() -> None:
    metrics = Metrics(rows, no_caches)
    for engine in ("decode-0", "decode-1"):
        metrics.errors.add("decode", "engine_reset", engine)
        metrics.leg_seconds.observe(1.0, "decode", engine)
    metrics.forget_engine("decode-0")
    samples = page(metrics)
    assert samples["transload_errors_total"] == {("decode-1", "engine_reset", "decode"): 1}
    assert samples["transload_leg_seconds_count"] == {("decode-1", "decode"): 1}


def test_label_values_of_any_kind_leave_a_page_that_can_be_read() -> None:
    metrics = Metrics(rows, no_caches)
    odd = 'quote " backslash \\ newline \n 漢'
    metrics.requests.add("chat", odd, "200")
    assert page(metrics)["transload_requests_total"] == {("200", "chat", odd): 1}
