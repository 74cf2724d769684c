"""Where publishers are, in the words of engines and of operators."""

import msgspec
import pytest

from transload_router.io.events.sources import BadSources, Source, named_source, read_sources

# What vLLM 0.32 answers: its KVEventsConfig by rank.
ANSWER = (
    b'{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",'
    b'"replay_endpoint":"tcp://*:6557","buffer_steps":10000,"hwm":100000,'
    b'"max_queue_size":100000,"topic":"kv@p1@tiny"},'
    b'"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558",'
    b'"replay_endpoint":"tcp://*:6558","buffer_steps":10000,"hwm":100000,'
    b'"max_queue_size":100000,"topic":"kv@p1@tiny"}}'
)


def answer(**config: object) -> bytes:
    return msgspec.json.encode({"0": {"endpoint": "tcp://*:5557", **config}})


def test_what_vllm_answers() -> None:
    assert read_sources(ANSWER, "10.1.2.3") == [
        Source(0, "tcp://10.1.2.3:5557", "tcp://10.1.2.3:6557"),
        Source(1, "tcp://10.1.2.3:5558", "tcp://10.1.2.3:6558"),
    ]


@pytest.mark.parametrize(
    ("endpoint", "host", "reached"),
    [
        ("tcp://*:5557", "engine-0", "tcp://engine-0:5557"),
        ("tcp://0.0.0.0:5557", "engine-0", "tcp://engine-0:5557"),
        ("tcp://[::]:5557", "engine-0", "tcp://engine-0:5557"),
        ("tcp://:::5557", "engine-0", "tcp://engine-0:5557"),
        ("tcp://*:5557", "fd00::1", "tcp://[fd00::1]:5557"),
        ("tcp://[fd00::2]:5557", "fd00::1", "tcp://[fd00::2]:5557"),
        ("tcp://10.0.0.9:41234", "engine-0", "tcp://10.0.0.9:41234"),
        ("ipc:///tmp/kv.sock", "engine-0", "ipc:///tmp/kv.sock"),
    ],
)
def test_endpoints_as_they_are_reached(endpoint: str, host: str, reached: str) -> None:
    body = answer(endpoint=endpoint, replay_endpoint=endpoint)
    assert read_sources(body, host) == [Source(0, reached, reached)]


@pytest.mark.parametrize("replay_endpoint", [None, ""])
def test_no_replay(replay_endpoint: str | None) -> None:
    assert read_sources(answer(replay_endpoint=replay_endpoint), "h") == [
        Source(0, "tcp://h:5557", None)
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        answer(enable_kv_cache_events=False),
        answer(publisher="null"),
        answer(publisher=None),
    ],
)
def test_engines_that_publish_nothing(body: bytes) -> None:
    assert read_sources(body, "h") == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"Not Found",
        b'{"detail":"Not Found"}',
        b'{"0":null}',
        b'{"0":{}}',
        b'{"x":{"endpoint":"tcp://*:5557"}}',
        b'{"-1":{"endpoint":"tcp://*:5557"}}',
        b'{"4096":{"endpoint":"tcp://*:5557"}}',
        answer(endpoint=5557),
        answer(endpoint="tcp://*"),
        answer(endpoint="tcp://*:"),
        answer(endpoint="tcp://*:0"),
        answer(endpoint="tcp://*:65536"),
        answer(endpoint="tcp://a b:1"),
        answer(endpoint="tcp://h/path:1"),
        answer(endpoint="http://*:5557"),
        answer(endpoint="ipc://"),
        answer(endpoint="inproc://cache"),
        answer(replay_endpoint="5558"),
        b"[" * 100_000,
    ],
)
def test_answers_that_name_no_publisher(body: bytes) -> None:
    with pytest.raises(BadSources):
        read_sources(body, "h")


def test_what_operators_name() -> None:
    source = named_source(2, "tcp://*:5559", "tcp://*:6559", "::1")
    assert source == Source(2, "tcp://[::1]:5559", "tcp://[::1]:6559")
    assert named_source(0, "ipc:///run/kv", None, "h") == Source(0, "ipc:///run/kv")
    with pytest.raises(BadSources, match="tcp://h:70000 has no port that could be reached"):
        named_source(0, "tcp://h:70000", None, "h")
