"""Owners of stored responses: bounded, the least recently used forgotten first."""

from transload_router.app.owners import Owners


def test_remember_and_find() -> None:
    owners = Owners()
    assert owners.find("resp_1") is None
    owners.remember("resp_1", "decode-0")
    owners.remember("resp_2", "decode-1")
    assert (owners.find("resp_1"), owners.find("resp_2")) == ("decode-0", "decode-1")
    owners.remember("resp_1", "decode-2")
    assert owners.find("resp_1") == "decode-2"
    assert len(owners) == 2


def test_never_more_than_the_limit() -> None:
    owners = Owners(limit=3)
    for number in range(10):
        owners.remember(f"r{number}", "d")
        assert len(owners) <= 3
    assert [owners.find(f"r{number}") for number in range(10)] == [None] * 7 + ["d"] * 3


def test_asking_and_answering_again_both_keep_an_owner() -> None:
    owners = Owners(limit=3)
    for name in ("asked", "answered", "idle"):
        owners.remember(name, "d")
    owners.find("asked")
    owners.remember("answered", "d")
    owners.remember("new", "d")
    assert owners.find("idle") is None
    assert (owners.find("asked"), owners.find("answered")) == ("d", "d")


def test_a_gone_engine_owns_nothing() -> None:
    owners = Owners()
    for number in range(6):
        owners.remember(f"r{number}", f"decode-{number % 2}")
    owners.forget_engine("decode-0")
    owners.forget_engine("never there")
    assert [owners.find(f"r{n}") for n in range(6)] == [None, "decode-1"] * 3
    assert len(owners) == 3
