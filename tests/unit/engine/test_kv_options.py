"""Options of transfers, and what is made of them."""

import pytest

from transload_engine.server.kv_options import TOKEN_VARIABLE, transfer_settings
from transload_engine.server.kv_transfer import KvTransport, TransferSettings
from transload_engine.server.model_command import model_parser


def settings(*arguments: str) -> TransferSettings:
    return transfer_settings(model_parser().parse_args(["--model", "/m", *arguments]))


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert settings() == TransferSettings("127.0.0.1", 0, None, 30.0, False, KvTransport.AUTO)


def test_each_option_reaches_its_setting() -> None:
    found = settings(
        *("--side-channel-host", "10.0.0.1", "--side-channel-port", "7000"),
        *("--kv-token", "s3cret", "--kv-lease-duration", "2.5", "--kv-allow-lossy"),
        *("--kv-transport", "tcp"),
    )
    assert found == TransferSettings("10.0.0.1", 7000, b"s3cret", 2.5, True, KvTransport.TCP)


def test_the_token_may_come_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "env")
    assert settings().token == b"env"
    assert settings("--kv-token", "line").token == b"line"
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    assert settings().token is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--side-channel-port", "65536"), "got 65536"),
        (("--kv-lease-duration", "0"), "got 0.0"),
        (("--kv-lease-duration", "inf"), "at most 4294967 seconds; got inf"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings(*arguments)


def test_loads_that_fail_are_computed_here_by_default() -> None:
    parse = model_parser().parse_args
    assert parse(["--model", "/m"]).kv_load_failure_policy == "recompute"
