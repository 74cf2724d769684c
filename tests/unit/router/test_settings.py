"""One definition behind flags, environment and file; errors that help and keep secrets."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from transload_router.errors import ConfigError
from transload_router.settings import Settings, check_engine_url, load_settings

DECODE = ("--decode", "d:1")
KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("TRANSLOAD_"):
            monkeypatch.delenv(name)


def write(folder: Path, text: str) -> str:
    path = folder / "transload.yaml"
    path.write_text(text)
    return str(path)


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(argv)
    return str(caught.value)


# One definition.


def test_every_field_is_described() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    words = " ".join(text.replace("-\n", "-").split()).replace("- ", "-")
    assert "transload serve" in text
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description is not None
        # Wrapped, perhaps inside a hyphenated word.
        assert field.description.replace("- ", "-") in words, name


def test_defaults() -> None:
    settings = load_settings(DECODE)
    assert settings.decode == ["http://d:1"]
    assert settings.prefill == []
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.credentials == "pass"
    assert settings.on_missing_handoff == "recompute"
    assert settings.on_prefill_failure == "fail"


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/wake_up",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/abort_requests",
        "/inference/v1/abort_requests",
        "/fault_tolerance/apply",
        "/release_kv_cache_memory",
        "/update_weights",
        "/v1/load_lora_adapter",
    ],
)
def test_operators_paths_are_blocked_by_default(path: str) -> None:
    assert path in load_settings(DECODE).blocked_paths


# Precedence: flags, environment, file, defaults.


@pytest.mark.parametrize(
    ("flags", "environment", "file", "expected"),
    [
        ((), {}, "", 8000),
        ((), {}, "port: 9", 9),
        ((), {"TRANSLOAD_PORT": "7"}, "port: 9", 7),
        (("--port", "5"), {"TRANSLOAD_PORT": "7"}, "port: 9", 5),
        (("--port=5",), {}, "port: 9", 5),
        ((), {"TRANSLOAD_PORT": ""}, "port: 9", 9),
        # What Kubernetes sets beside a Service called transload.
        ((), {"TRANSLOAD_PORT": "tcp://10.0.0.1:80"}, "", 8000),
        ((), {"TRANSLOAD_PORT": "tcp://10.0.0.1:80"}, "port: 9", 9),
        (("--port", "5"), {"TRANSLOAD_PORT": "tcp://10.0.0.1:80"}, "port: 9", 5),
    ],
)
def test_precedence(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flags: tuple[str, ...],
    environment: Mapping[str, str],
    file: str,
    expected: int,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings([*DECODE, *flags, "--config", write(tmp_path, file)])
    assert settings.port == expected


def test_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = ["http://a:1", "http://b:80"]
    assert load_settings(["--decode", "a:1", "--decode", "b"]).decode == expected
    assert load_settings(["--decode", "a:1,b"]).decode == expected
    assert load_settings(["--config", write(tmp_path, "decode: [a:1, b]")]).decode == expected
    assert load_settings(["--config", write(tmp_path, "decode: 'a:1, b'")]).decode == expected
    monkeypatch.setenv("TRANSLOAD_DECODE", "a:1, b,")
    assert load_settings([]).decode == expected
    # A list replaces, it does not add.
    assert load_settings(DECODE).decode == ["http://d:1"]


def test_config_file_is_named_by_flag_or_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRANSLOAD_CONFIG", write(tmp_path, "port: 9"))
    assert load_settings(DECODE).port == 9
    other = tmp_path / "other.yaml"
    other.write_text("port: 10")
    assert load_settings([*DECODE, f"--config={other}"]).port == 10
    # As for every flag, the last one counts.
    first = str(tmp_path / "transload.yaml")
    assert load_settings([*DECODE, "--config", first, "--config", str(other)]).port == 10


def test_negated_flag() -> None:
    assert load_settings([*DECODE, "--no-handoff-probe"]).handoff_probe is False
    assert load_settings([*DECODE, "--handoff-probe"]).handoff_probe is True


def test_neighbours_in_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_settings(DECODE).model_dump()
    for name in ("TRANSLOAD_SERVICE_HOST", "TRANSLOAD_PORT_80_TCP", "TRANSLOAD_PREFILL_PORT"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:80")
    assert load_settings(DECODE).model_dump() == before


# Engines' addresses.


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("h:1", "http://h:1"),
        ("h", "http://h:80"),
        ("http://h", "http://h:80"),
        ("https://h", "https://h:443"),
        ("HTTP://Host:1/", "http://host:1"),
        ("http://h:1/base/", "http://h:1/base"),
        ("h/base", "http://h:80/base"),
        ("10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("[::1]", "http://[::1]:80"),
        ("https://[2001:db8::1]/x/", "https://[2001:db8::1]:443/x"),
    ],
)
def test_engine_url(given: str, url: str) -> None:
    assert check_engine_url(given) == url
    assert check_engine_url(url) == url


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ftp://h", "scheme must be http or https"),
        ("tcp://h:1", "scheme must be http or https"),
        ("http://", "no host"),
        ("::1:8000", "no host"),
        ("fe80::1", "[Pp]ort"),
        ("h:0", "port 0"),
        ("h:65536", "[Pp]ort out of range"),
        ("h:http", "[Pp]ort"),
        ("http://h?x=1", "no query or fragment"),
        ("http://h#x", "no query or fragment"),
        ("http://[::1", "cannot be read"),
        ("http://[zz]:1", "cannot be read"),
        ("http://u:p@h", "credentials"),
        ("http://u@h", "credentials"),
    ],
)
def test_engine_url_refused(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_engine_url(given)
    with pytest.raises(ConfigError, match=rf"^decode\.1: .*{message}"):
        load_settings([*DECODE, "--decode", given])


# Errors.


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "decode: at least one decode engine is needed (--decode URL)"),
        (
            (*DECODE, "--prefill", "http://d:1/"),
            "http://d:1 is named as prefill and as decode engine",
        ),
        ((*DECODE, *DECODE), "decode: an engine is named twice"),
        (
            (*DECODE, "--prefill", "p", "--prefill", "http://p:80/"),
            "prefill: an engine is named twice",
        ),
        ((*DECODE, "--credentials", "replace"), "credentials: replace needs decode_api_key"),
        (
            (*DECODE, "--prefill", "p", "--credentials", "replace", "--decode-api-key", KEY),
            "credentials: replace needs prefill_api_key",
        ),
        (
            (*DECODE, "--credentials", "drop", "--prefill-api-key", KEY),
            "credentials: drop contradicts an api key; use replace",
        ),
        *(
            (
                (*DECODE, f"--{side}-api-key", key),
                f"{side}_api_key: only visible ASCII characters can stand in a header",
            )
            for side in ("prefill", "decode")
            for key in ("\u00e9", "a\r\nx-evil: 1", "a b", "a\n", "\x7f")
        ),
        ((*DECODE, "--model-name", "a="), "model_name: a= lacks a name"),
        ((*DECODE, "--model-name", "=b"), "model_name: =b lacks a name"),
        (
            (*DECODE, "--model-name", "a=b", "--model-name", "a=c"),
            "model_name: an alias is named twice",
        ),
        (
            (*DECODE, "--on-missing-handoff", "x"),
            "on_missing_handoff: Input should be 'recompute' or 'fail'",
        ),
        ((*DECODE, "--port", "65536"), "port: Input should be less than or equal to 65535"),
        ((*DECODE, "--port", "-1"), "port: Input should be greater than or equal to 0"),
    ],
)
def test_error_text(argv: tuple[str, ...], message: str) -> None:
    assert refusal(*argv) == message


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name.endswith("_s")])
def test_seconds_are_positive_and_finite(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    for value in ("0", "-1", "nan", "inf", "86401", "soon"):
        assert refusal(*DECODE, flag, value).startswith(f"{name}: Input should be ")
    assert getattr(load_settings([*DECODE, flag, "0.5"]), name) == 0.5


def test_every_error_is_told_at_once() -> None:
    lines = refusal(*DECODE, "--port", "x", "--connect-timeout-s", "0").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["port", "connect_timeout_s"]


@pytest.mark.parametrize("argv", [("--unknown", "1"), ("--por", "1"), ("--port",)])
def test_unknown_flags_end_the_program(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings([*DECODE, *argv])
    assert caught.value.code == 2
    assert argv[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 9", "prot: Extra inputs are not permitted"),
        ("- 1", "must hold a mapping of settings"),
        ("just text", "must hold a mapping of settings"),
        ("1: 2", "must hold a mapping of settings"),
        ("port: 9\nnull: 1", "must hold a mapping of settings"),
        ("on: 1", "must hold a mapping of settings"),
        ("port: 1\nhost: [", "is not YAML, line 2"),
        ("port: {", "is not YAML"),
        ("port: nine", "port: Input should be a valid integer"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(*DECODE, "--config", write(tmp_path, text))


def test_unreadable_files(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert refusal(*DECODE, "--config", str(missing)) == (
        f"config: cannot read {missing}: No such file or directory"
    )
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"host: caf\xe9")
    assert refusal(*DECODE, "--config", str(latin)) == f"config: {latin} is not UTF-8 text"


def test_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load_settings([*DECODE, "--config", write(tmp_path, "# nothing\n")]).port == 8000


# Secrets.


@pytest.mark.parametrize("setting", ["prefill_api_key", "decode_api_key", "admin_api_key"])
def test_keys_are_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str) -> None:
    flag = f"--{setting.replace('_', '-')}"
    settings = load_settings([*DECODE, flag, KEY])
    assert getattr(settings, setting).get_secret_value() == KEY
    for shown in (
        repr(settings),
        str(settings),
        settings.model_dump_json(),
        str(settings.model_dump()),
    ):
        assert KEY not in shown
    assert KEY not in refusal(*DECODE, flag, KEY, "--port", "x")
    # A key that is refused itself.
    monkeypatch.setenv(f"TRANSLOAD_{setting.upper()}", f"{KEY} {KEY}")
    assert KEY not in refusal(*DECODE)


@pytest.mark.parametrize(
    "text",
    [
        f'decode_api_key: "{KEY}\nport: 9',
        f"decode_api_key: [{KEY}]",
        f"decode_api_key: {{{KEY}",
        f"decode_api_key: {KEY}\n  port: 9",
        f"decode_api_key: !!python/name:{KEY}",
        f"decode_api_kee: {KEY}",
        f"decode: ['http://user:{KEY}@d:1']",
        f"decode: ['ftp://user:{KEY}@d:1/?x']",
        f"decode: ['http://user:{KEY}@d:x']",
        f"decode: ['http://user:{KEY}@[::1']",
        f"decode: ['http://user:{KEY}@d\u2100']",
    ],
)
def test_keys_are_not_shown_in_errors_of_files(tmp_path: Path, text: str) -> None:
    assert KEY not in refusal("--config", write(tmp_path, text))


# Values.


def test_aliases() -> None:
    settings = load_settings([*DECODE, "--model-name", "a=b=c", "--model-name", "only"])
    assert settings.aliases() == {"a": "b=c", "only": None}


def test_settings_are_frozen() -> None:
    settings = load_settings(DECODE)
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


# Routing.


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("policy", "prefix", "prefix"),
        ("session_header", "X-Talk", "X-Talk"),
        ("kv_events", "off", "off"),
        (
            "kv_event_endpoint",
            "decode-0=tcp://*:5557;tcp://*:5558,decode-0/1=ipc:///run/kv",
            ["decode-0=tcp://*:5557;tcp://*:5558", "decode-0/1=ipc:///run/kv"],
        ),
        ("index_max_blocks", "5000", 5000),
        ("index_snapshot_from", "router-1:8000", "http://router-1:8000"),
        ("tokenizer", "a=/models/a,b=org/b", ["a=/models/a", "b=org/b"]),
        ("tokenizer_fallback", "none", "none"),
        ("send_token_ids", "false", False),
        ("decision_log_share", "0.25", 0.25),
        ("admin_api_key", KEY, KEY),
    ],
)
def test_routing_is_set_in_all_ways(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, word: str, value: object
) -> None:
    def read(*argv: str) -> object:
        got = getattr(load_settings((*DECODE, *argv)), name)
        return got.get_secret_value() if isinstance(got, SecretStr) else got

    assert read() != value
    in_file = write(tmp_path, f"{name}: {json.dumps(value)}\n")
    assert read("--config", in_file) == value
    flag = f"--{name.replace('_', '-')}"
    assert read(*((flag, word) if value is not False else ("--no-send-token-ids",))) == value
    monkeypatch.setenv(f"TRANSLOAD_{name.upper()}", word)
    assert read() == value


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("decode-0=tcp://*:5557", (0, "tcp://*:5557", None)),
        ("decode-0/3=tcp://h:1;tcp://h:2", (3, "tcp://h:1", "tcp://h:2")),
        ("decode-0=tcp://[::1]:5557", (0, "tcp://[::1]:5557", None)),
        ("decode-0=ipc:///run/kv;ipc:///run/replay", (0, "ipc:///run/kv", "ipc:///run/replay")),
    ],
)
def test_event_endpoints(place: str, found: tuple[int, str, str | None]) -> None:
    settings = load_settings((*DECODE, "--kv-event-endpoint", place))
    assert settings.event_endpoints() == {"decode-0": [found]}


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("tcp://h:1", "is not ENGINE"),
        ("decode-0", "is not ENGINE"),
        ("decode-0=", "is not ENGINE"),
        ("decode-0=h:1", "is not ENGINE"),
        ("decode-0=http://h:1", "is not ENGINE"),
        ("decode-0=tcp://h", "is not ENGINE"),
        ("decode-0=tcp://h:0", "is not ENGINE"),
        ("decode-0=tcp://h:1;", "is not ENGINE"),
        ("decode-0=tcp://h:1;udp://h:2", "is not ENGINE"),
        ("decode-0/x=tcp://h:1", "is not ENGINE"),
        ("router-0=tcp://h:1", "is not ENGINE"),
        ("decode-1=tcp://h:1", "there is no engine decode-1"),
        ("prefill-0=tcp://h:1", "there is no engine prefill-0"),
    ],
)
def test_bad_event_endpoints_are_named(place: str, message: str) -> None:
    told = refusal(*DECODE, "--kv-event-endpoint", place)
    assert told.startswith("kv_event_endpoint: ")
    assert message in told


def test_a_rank_has_one_endpoint() -> None:
    places = ("--kv-event-endpoint", "decode-0=tcp://h:1", "--kv-event-endpoint")
    told = refusal(*DECODE, *places, "decode-0=tcp://h:2")
    assert told == "kv_event_endpoint: an engine's rank is named twice"


def test_tokenizers_by_model() -> None:
    assert load_settings(DECODE).tokenizers() == {}
    one = load_settings((*DECODE, "--tokenizer", "/models/a"))
    assert one.tokenizers() == {None: "/models/a"}
    two = load_settings((*DECODE, "--tokenizer", "a=/m/a", "--tokenizer", "b=none"))
    assert two.tokenizers() == {"a": "/m/a", "b": "none"}


@pytest.mark.parametrize("given", [["a=x", "a=y"], ["a="], ["=x"], ["x", "y"], ["x", "a=y"]])
def test_bad_tokenizers_are_named(given: list[str]) -> None:
    flags = [word for one in given for word in ("--tokenizer", one)]
    assert refusal(*DECODE, *flags).startswith("tokenizer: ")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--policy", "fastest"),
        ("--kv-events", "on"),
        ("--tokenizer-fallback", "router"),
        ("--index-max-blocks", "999"),
        ("--index-snapshot-from", "ftp://x"),
        ("--index-snapshot-from", "http://user:pw@x"),
        ("--decision-log-share", "1.5"),
        ("--decision-log-share", "-0.1"),
        ("--session-header", "x session"),
    ],
)
def test_bad_routing_is_named(flag: str, value: str) -> None:
    told = refusal(*DECODE, flag, value)
    assert told.startswith(flag[2:].replace("-", "_") + ": "), told
    assert "pw" not in told


def test_a_key_that_no_header_can_carry() -> None:
    assert "admin_api_key: only visible ASCII" in refusal(*DECODE, "--admin-api-key", "a b")
