"""Proofs for tokens of several lengths, and what must change them."""

from wire_vectors.message_cases import NONCE, OTHER_NONCE, SESSION, accepted
from wire_vectors.spelling import Document, message, proof, stream_proof, transcript


def proofs() -> list[Document]:
    """One for each token, and one for each thing that a stranger may have altered."""
    good = {case.name: case.meaning for case in accepted() if case.is_canonical}
    hello, welcome = good["hello-full"], good["welcome-full"]
    altered: list[tuple[str, Document, Document]] = [
        ("other-versions", {"versions": [1]}, {}),
        ("other-reader-nonce", {"nonce": OTHER_NONCE}, {}),
        ("other-holder-nonce", {}, {"nonce": NONCE}),
        ("other-session", {}, {"session": SESSION[::-1]}),
        ("other-version", {}, {"version": 2}),
        ("other-features", {}, {"features": []}),
        ("other-extension", {}, {"x_more": 1}),
    ]
    tokens = [
        ("no-token", b""),
        ("short-token", b"k"),
        ("token", b"a shared secret"),
        ("long-token", bytes(range(100))),
    ]
    cases = [_case(name, token, hello, welcome) for name, token in tokens]
    return cases + [
        _case(name, b"a shared secret", {**hello, **first}, {**welcome, **second})
        for name, first, second in altered
    ]


def _case(name: str, token: bytes, hello: Document, welcome: Document) -> Document:
    digest = transcript(hello, welcome)
    key = proof(token, "session", digest)
    holder = proof(token, "holder", digest).hex()
    return {
        "name": name,
        "token": token.hex(),
        "hello": message(hello)[8:].hex(),
        "welcome": message({**welcome, "proof": holder})[8:].hex(),
        "transcript": digest.hex(),
        "holder_proof": holder,
        "reader_proof": proof(token, "reader", digest).hex(),
        "session_key": key.hex(),
        "session": welcome["session"],
        "stream_proofs": {
            str(stream): stream_proof(key, welcome["session"], stream).hex()
            for stream in (1, 2, 16)
        },
    }
