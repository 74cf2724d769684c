"""Which headers cross the router: literal blocks in, literal blocks out."""

import re
from typing import Any

import pytest
from pydantic import SecretStr

from transload_router.app.headers import HOP_BY_HOP, ROUTING, HeaderPolicy, find
from transload_router.core.types import Headers, Role
from transload_router.settings import Settings

PREFILL, DECODE = "http://10.0.0.1:8100", "http://[fd00::2]:8200/base"
KEYS: dict[str, Any] = {"prefill_api_key": SecretStr("kp"), "decode_api_key": SecretStr("kd")}
CREDENTIALS: Headers = [(b"authorization", b"Bearer client"), (b"x-api-key", b"client")]


def policy(**settings: Any) -> HeaderPolicy:
    return HeaderPolicy(Settings(prefill=[PREFILL], decode=[DECODE], **settings))


def test_a_block_is_lines_in_order_with_repeats() -> None:
    client: Headers = [(b"x-b", b"1"), (b"accept", b"*/*"), (b"x-b", b"\xe9, 2"), (b"x-e", b"")]
    assert policy().block(client, reads_answer=False) == (
        b"x-b: 1\r\naccept: */*\r\nx-b: \xe9, 2\r\nx-e: \r\n"
    )


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP | ROUTING))
def test_what_is_of_one_hop_or_routes_ends_here(name: bytes) -> None:
    client: Headers = [(name, b"x"), (b"x-keep", b"1")]
    assert policy().block(client, reads_answer=False) == b"x-keep: 1\r\n"


@pytest.mark.parametrize(
    "name",
    [
        b"host",
        b"content-length",
        b"expect",
        b"x-request-id",
        b"x-transload-explain",
        b"x-transload-anything",
    ],
)
def test_what_the_router_says_itself_is_not_sent_on(name: bytes) -> None:
    assert policy().block([(name, b"x")], reads_answer=False) == b""


def test_connection_names_further_ones() -> None:
    client: Headers = [
        (b"connection", b"Keep-Alive, X-Hop"),
        (b"connection", b"x-two"),
        (b"x-hop", b"1"),
        (b"x-two", b"2"),
        (b"x-keep", b"3"),
    ]
    assert policy().block(client, reads_answer=False) == b"x-keep: 3\r\n"


def test_an_answer_that_is_read_must_not_be_compressed() -> None:
    client: Headers = [(b"accept-encoding", b"gzip"), (b"accept", b"a")]
    assert policy().block(client, reads_answer=True) == b"accept: a\r\n"
    assert policy().block(client, reads_answer=False) == b"accept-encoding: gzip\r\naccept: a\r\n"


def test_further_names_can_be_left_out() -> None:
    client: Headers = [(b"accept", b"a"), (b"x-keep", b"1")]
    left = policy().block(client, reads_answer=False, without=frozenset({b"accept"}))
    assert left == b"x-keep: 1\r\n"


@pytest.mark.parametrize(
    ("mode", "keys", "block", "prefill", "decode"),
    [
        ("pass", {}, b"authorization: Bearer client\r\nx-api-key: client\r\n", b"", b""),
        ("pass", KEYS, b"authorization: Bearer client\r\nx-api-key: client\r\n", b"", b""),
        ("drop", {}, b"", b"", b""),
        (
            "replace",
            KEYS,
            b"",
            b"authorization: Bearer kp\r\n",
            b"authorization: Bearer kd\r\n",
        ),
    ],
)
def test_credentials(
    mode: str, keys: dict[str, Any], block: bytes, prefill: bytes, decode: bytes
) -> None:
    headers = policy(credentials=mode, **keys)
    assert headers.block(CREDENTIALS, reads_answer=True) == block
    for role, line in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        sent = headers.leg(role, b"a: b\r\n")
        assert re.fullmatch(rb"a: b\r\n" + line + rb"x-request-id: [0-9a-f]{32}\r\n", sent)


def test_each_leg_has_an_id_of_its_own() -> None:
    one, other = policy(), policy()
    sent = [each.leg(role, b"") for each in (one, other) for role in Role for _ in range(50)]
    assert len(set(sent)) == len(sent)


def test_probes_have_the_keys_of_their_pool() -> None:
    assert policy().probe(Role.DECODE) == []
    assert policy(**KEYS).probe(Role.PREFILL) == [(b"authorization", b"Bearer kp")]
    assert policy(**KEYS).probe(Role.DECODE) == [(b"authorization", b"Bearer kd")]
    assert policy().probe_block(Role.DECODE) == b""
    assert policy(**KEYS).probe_block(Role.DECODE) == b"authorization: Bearer kd\r\n"


def test_an_answers_headers() -> None:
    upstream: Headers = [
        (b"content-type", b"text/x"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"date", b"then"),
        (b"server", b"uvicorn"),
        (b"x-request-id", b"the engine's"),
        (b"alt-svc", b'h3=":1"'),
        (b"content-location", b"http://10.0.0.1:8100/x"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"close, x-hop"),
        (b"x-hop", b"1"),
        (b"x-transload-path", b"forged"),
        (b"retry-after", b"3"),
        (b"content-length", b"9"),
    ]
    kept: Headers = [
        (b"content-type", b"text/x"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"retry-after", b"3"),
    ]
    assert policy().answer(upstream) == kept
    assert policy().answer(upstream, keeps_length=True) == [*kept, (b"content-length", b"9")]


@pytest.mark.parametrize(
    ("location", "given"),
    [
        (b"http://10.0.0.1:8100/v1/x/?a=b", b"/v1/x/?a=b"),
        (b"HTTPS://10.0.0.1:8100/x", b"/x"),
        (b"//10.0.0.1:8100/x", b"/x"),
        (b"http://10.0.0.1:8100", b"/"),
        (b"http://[fd00::2]:8200/base/x", b"/x"),
        (b"http://10.0.0.1:81000/x", b"http://10.0.0.1:81000/x"),
        (b"http://10x0.0.1:8100/x", b"http://10x0.0.1:8100/x"),
        (
            b"https://elsewhere/?u=http://10.0.0.1:8100/",
            b"https://elsewhere/?u=http://10.0.0.1:8100/",
        ),
        (b"/x", b"/x"),
    ],
)
def test_redirects_show_no_engine(location: bytes, given: bytes) -> None:
    assert policy().answer([(b"location", location)]) == [(b"location", given)]


def test_find_takes_the_first() -> None:
    headers: Headers = [(b"a", b"1"), (b"b", b"2"), (b"b", b"3")]
    assert find(headers, b"b") == b"2"
    assert find(headers, b"c") is None
