"""Messages that every side accepts: one of each type, with few fields and with all."""

from typing import NamedTuple

from abi_vectors.packed import pack
from wire_vectors.spelling import Document

NONCE = "00112233445566778899aabbccddeeff" * 2
OTHER_NONCE = "ffeeddccbbaa99887766554433221100" * 2
PROOF = "0123456789abcdef" * 4
SESSION = "5e55109e" * 4
MAX = (1 << 53) - 1
MAX_UNPROVEN = 4096
"""Bytes of a message before its sender's proof was taken."""


class MessageCase(NamedTuple):
    """A message in one spelling.

    Attributes:
        name: Of the case.
        sender: `reader` or `holder`.
        meaning: All fields but those that equal their default.
        body: The bytes.
        is_canonical: Whether a writer makes these bytes.
    """

    name: str
    sender: str
    meaning: Document
    body: bytes
    is_canonical: bool = True


def padded(document: Document, num_bytes: int) -> Document:
    """A message with an extension that makes its body so long, of some thousand bytes."""
    parts = [256] * ((num_bytes - len(pack(document))) // 259 - 1)
    lacking = num_bytes - len(pack(_padded(document, parts)))
    for at in range(len(parts)):
        more = min(lacking, 500 - parts[at])
        parts[at] += more
        lacking -= more
    return _padded(document, parts)


def _padded(document: Document, parts: list[int]) -> Document:
    return {**document, "x_pad": ["x" * part for part in parts]}


def _hello(**more: object) -> Document:
    return {
        "type": "hello",
        "versions": [1],
        "engine": "decode-0",
        "generation": "17",
        "nonce": NONCE,
        "max_data_bytes": 1 << 20,
        **more,
    }


def _welcome(**more: object) -> Document:
    return {
        "type": "welcome",
        "version": 1,
        "engine": "prefill-0",
        "generation": "4",
        "session": SESSION,
        "nonce": OTHER_NONCE,
        "proof": PROOF,
        "max_data_bytes": 1 << 20,
        **more,
    }


def _read(**more: object) -> Document:
    base = {"type": "read", "id": 2, "handoff": "h", "group": "attention", "blocks": [[0, 1]]}
    return {**base, **more}


def _lease(**more: object) -> Document:
    return {
        "type": "lease",
        "id": 1,
        "num_tokens": 10,
        "tables": [{"table": 0, "num_blocks": 3}],
        "readers": 1,
        "left": 1,
        "expires_ms": 30000,
        **more,
    }


def _about(kind: str, **more: object) -> Document:
    return {"type": kind, "id": 7, "handoff": "h", **more}


_FILE: Document = {"pool": "kv", "name": "transload-kv", "num_bytes": 256}
_OTHER_FILE: Document = {"pool": "w" * 512, "name": f"transload-{'0' * 245}", "num_bytes": MAX}


def _mapped(**more: object) -> Document:
    return {"type": "mapped", "id": 2, "pools": [_FILE], "blocks": [[5, 1]], **more}


_WIDE_NULLS = [[2 * number, 1] for number in range(4096)]

_READER: list[tuple[str, Document]] = [
    ("hello", _hello()),
    ("hello-full", _hello(versions=[1, 2, 65535], features=["a", "f" * 64])),
    ("hello-least", _hello(engine="", generation="g", max_data_bytes=4096)),
    ("hello-longest-names", _hello(engine="é" * 256, generation="g" * 256)),
    ("hello-most-features", _hello(features=[f"{n:056d}" for n in range(64)])),
    ("prove", {"type": "prove", "proof": PROOF}),
    ("attach", {"type": "attach", "session": SESSION, "stream": 16, "proof": PROOF}),
    ("open", {"type": "open", "id": 1, "handoff": "h", "lease": "l", "reader": "r"}),
    ("open-last-id", _about("open", lease="l", reader="r") | {"id": (1 << 32) - 1}),
    ("read", _read()),
    ("read-full", _read(layers=[1, 2], heads=[4, 2], stream=2, checksums=True)),
    ("read-blocks", _read(form="block", blocks=[[0, 2], [2, 1], [5, 1 << 31]])),
    ("read-page", _read(form="page", layers=[0, 4096], group="g" * 512)),
    ("read-most-ranges", _read(blocks=[[(1 << 20) + 2 * n, 1] for n in range(4096)])),
    ("cancel", {"type": "cancel", "id": 2}),
    ("map", _about("map", table=0, blocks=[[0, 1]])),
    ("map-most-ranges", _about("map", table=MAX, blocks=[*_WIDE_NULLS[:-1], [8190, 1 << 31]])),
    ("confirm", _about("confirm")),
    ("renew", _about("renew")),
    ("done", _about("done")),
    ("release", _about("release")),
    ("forgo", _about("forgo", lease="l")),
    ("bye", {"type": "bye"}),
    ("bye-reason", {"type": "bye", "reason": "the engine ends"}),
]
_HOLDER: list[tuple[str, Document]] = [
    ("welcome", _welcome()),
    ("welcome-full", _welcome(max_streams=16, features=["shared_memory"])),
    ("accept", {"type": "accept", "verdict": "identical"}),
    ("accept-lossy", {"type": "accept", "verdict": "lossy"}),
    ("refuse", {"type": "refuse", "path": "model.rope.params.rope_theta", "reason": "r" * 500}),
    ("attached", {"type": "attached", "stream": 1}),
    ("lease", _lease()),
    (
        "lease-full",
        _lease(
            tables=[
                {"table": 0, "num_blocks": 4, "null": [[0, 2]]},
                {"table": 3, "num_blocks": 0},
                {"table": MAX, "num_blocks": 1 << 32, "null": [[0, 1], [1, 1], [9, 2]]},
            ],
            readers=1 << 16,
            left=2,
            num_tokens=MAX,
            num_encoder_tokens=1500,
            expires_ms=(1 << 32) - 1,
        ),
    ),
    (
        "lease-most-ranges",
        _lease(tables=[{"table": 0, "num_blocks": 1 << 32, "null": _WIDE_NULLS}]),
    ),
    ("read_end", {"type": "read_end", "id": 2, "num_bytes": MAX}),
    ("read_end-nothing", {"type": "read_end", "id": 2, "num_bytes": 0}),
    ("cancelled", {"type": "cancelled", "id": 2}),
    ("mapped", _mapped()),
    ("mapped-full", _mapped(pools=[_FILE, _OTHER_FILE], blocks=[[9, 2], [1, 1], [1, 1]])),
    ("mapped-most-ranges", _mapped(blocks=[[(1 << 32) - 1 - n, 1] for n in range(4096)])),
    ("confirmed", {"type": "confirmed", "id": 7, "expires_ms": 0}),
    ("ended", {"type": "ended", "id": 7, "left": 0}),
    ("error-session", {"type": "error", "code": "bad_version", "reason": ""}),
    ("error-request", {"type": "error", "id": 2, "code": "bad_read", "reason": "no such group"}),
    ("bye-holder", {"type": "bye"}),
]
_GONE = ("expired", "ended", "unknown", "other_lease")
_CODES = (
    *("bad_frame", "bad_message", "bad_descriptor", "bad_version", "bad_proof", "bad_read"),
    *("out_of_turn", "too_many", "busy", "internal"),
)


def accepted() -> list[MessageCase]:
    """All of them; those in other spellings last."""
    gone = [(f"expired-{why}", {"type": "expired", "id": 7, "why": why}) for why in _GONE]
    codes = [
        (f"error-{code}", {"type": "error", "id": 1, "code": code, "reason": "r"})
        for code in _CODES
    ]
    cases = [MessageCase(name, "reader", meaning, pack(meaning)) for name, meaning in _READER]
    cases += [
        MessageCase(name, "holder", meaning, pack(meaning))
        for name, meaning in (*_HOLDER, *gone, *codes)
    ]
    return cases + _other_spellings()


def _other_spellings() -> list[MessageCase]:
    """Defaults that are spelled out, and extensions."""
    extension = {"a": [-5, None, True, {"b": "c"}], "params": -1}
    tables = [{"table": 0, "num_blocks": 3}]
    spelled: list[tuple[str, str, Document, Document]] = [
        (
            "read-defaults",
            "reader",
            _read(),
            _read(layers=None, heads=None, form="elements", stream=0, checksums=False),
        ),
        ("hello-extensions", "reader", _hello(), _hello(x_more=extension, x_=0)),
        ("hello-longest", "reader", _hello(), padded(_hello(), MAX_UNPROVEN)),
        ("welcome-longest", "holder", _welcome(), padded(_welcome(), MAX_UNPROVEN)),
        ("bye-default", "reader", {"type": "bye"}, {"type": "bye", "reason": ""}),
        (
            "lease-extensions",
            "holder",
            _lease(tables=tables),
            _lease(tables=[{**tables[0], "null": [], "x_t": extension}], num_encoder_tokens=0),
        ),
        ("mapped-extensions", "holder", _mapped(), _mapped(pools=[{**_FILE, "x_": 1}], x_=0)),
        ("welcome-defaults", "holder", _welcome(), _welcome(max_streams=0, features=[], x_y="")),
        (
            "error-default",
            "holder",
            {"type": "error", "code": "busy", "reason": "r"},
            {"type": "error", "code": "busy", "reason": "r", "id": 0},
        ),
    ]
    return [
        MessageCase(name, sender, meaning, pack(document), is_canonical=False)
        for name, sender, meaning, document in spelled
    ]
