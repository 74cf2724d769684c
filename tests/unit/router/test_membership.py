"""Members: who is chosen for what, what is known of models, what pairs were seen to do."""

import pytest

from transload_router.core.index.keys import Identity
from transload_router.core.membership import Fleet, Health, Verdict
from transload_router.core.types import Address, Engine, Role

D, P = Role.DECODE, Role.PREFILL


def engine(name: str, role: Role = D) -> Engine:
    return Engine(name, role, Address("h", 1))


@pytest.fixture
def fleet() -> Fleet:
    """Prefill p0; decode d0, d1, d2, all joining."""
    fleet = Fleet()
    for one in (engine("p0", P), engine("d0"), engine("d1"), engine("d2")):
        fleet.add(one)
    return fleet


def serving(*models: str) -> dict[str, str | None]:
    """Base models that an engine lists."""
    return dict.fromkeys(models)


def chosen(fleet: Fleet, model: str | None = None, avoid: frozenset[str] = frozenset()) -> str:
    return " ".join(member.engine.id for member in fleet.candidates(D, model, avoid))


def test_pools_keep_their_order(fleet: Fleet) -> None:
    assert [member.engine.id for member in fleet.of_role(D)] == ["d0", "d1", "d2"]
    assert [member.engine.id for member in fleet.of_role(P)] == ["p0"]
    assert fleet.engine("d1") == engine("d1")


def test_an_id_is_added_once(fleet: Fleet) -> None:
    with pytest.raises(AssertionError):
        fleet.add(engine("d0"))


def test_joining_and_up_are_chosen_down_is_not(fleet: Fleet) -> None:
    assert {member.health for member in fleet.members.values()} == {Health.JOINING}
    assert chosen(fleet) == "d0 d1 d2"
    fleet.mark_up("d0", None)
    fleet.mark_down("d1", "no connection")
    assert chosen(fleet) == "d0 d2"
    assert chosen(fleet, avoid=frozenset({"d0"})) == "d2"
    fleet.mark_up("d1", None)
    assert chosen(fleet) == "d0 d1 d2"


def test_the_detail_is_of_the_last_fall(fleet: Fleet) -> None:
    fleet.mark_down("d0", "no connection")
    assert (fleet.members["d0"].health, fleet.members["d0"].detail) == (
        Health.DOWN,
        "no connection",
    )
    fleet.mark_up("d0", None)
    assert (fleet.members["d0"].health, fleet.members["d0"].detail) == (Health.UP, "")


def test_a_model_narrows_the_choice_to_who_may_serve_it(fleet: Fleet) -> None:
    fleet.mark_up("d0", serving("a"))
    fleet.mark_up("d1", serving("b"))
    fleet.mark_up("d2", None)
    assert chosen(fleet, "a") == "d0 d2"
    assert chosen(fleet, "b") == "d1 d2"
    assert chosen(fleet, "never heard of") == "d0 d1 d2"
    assert chosen(fleet) == "d0 d1 d2"


def test_a_model_whose_only_engine_is_down_goes_nowhere_else(fleet: Fleet) -> None:
    for name in ("d1", "d2"):
        fleet.mark_up(name, serving("b"))
    fleet.mark_up("d0", serving("a"))
    fleet.mark_down("d0", "x")
    assert chosen(fleet, "a") == ""
    assert fleet.is_known_model("a"), "what it served is still known"


def test_known_models_follow_the_last_listing(fleet: Fleet) -> None:
    assert fleet.known_models() == frozenset()
    assert fleet.only_model() is None
    fleet.mark_up("d0", serving("a"))
    fleet.mark_up("p0", serving("a"))
    assert fleet.only_model() == "a"
    fleet.mark_up("d1", serving("a", "lora"))
    assert fleet.known_models() == {"a", "lora"}
    assert fleet.only_model() is None
    fleet.mark_up("d1", serving("a"))
    assert fleet.known_models() == {"a"}
    fleet.mark_up("d1", None)
    fleet.mark_up("d0", None)
    assert fleet.is_known_model("a"), "prefill still lists it"
    fleet.mark_up("p0", None)
    assert not fleet.is_known_model("a")
    assert not fleet.is_known_model(None)


def test_pairs(fleet: Fleet) -> None:
    assert fleet.pair("p0", "d0") is Verdict.UNKNOWN
    assert fleet.judge_pair("p0", "d0", Verdict.WORKS) is True
    assert fleet.judge_pair("p0", "d0", Verdict.WORKS) is False
    assert fleet.judge_pair("p0", "d0", Verdict.FAILS) is True
    assert fleet.pair("p0", "d0") is Verdict.FAILS
    assert fleet.pair("p0", "d1") is Verdict.UNKNOWN
    copy = fleet.pairs()
    copy.clear()
    assert fleet.pairs() == {("p0", "d0"): Verdict.FAILS}


def test_releases(fleet: Fleet) -> None:
    assert fleet.release("d0") is Verdict.UNKNOWN
    fleet.judge_release("d0", Verdict.MISSING)
    assert fleet.release("d0") is Verdict.MISSING
    assert fleet.release("d1") is Verdict.UNKNOWN
    fleet.forget_release("d0")
    fleet.forget_release("p0")
    assert fleet.release("d0") is Verdict.UNKNOWN


def test_names_of_one_model_are_one_identity(fleet: Fleet) -> None:
    fleet.mark_up("p0", serving("b", "c"))
    fleet.mark_up("d0", serving("other"))
    fleet.mark_up("d1", serving("c", "a"))
    fleet.mark_up("d2", None)
    assert {fleet.identity(name) for name in ("a", "b", "c")} == {Identity("a")}
    assert fleet.identity("other") == Identity("other")
    assert fleet.identity("unheard") is None


def test_an_adapter_is_its_base_model_with_a_name(fleet: Fleet) -> None:
    fleet.mark_up("d0", {"base": None, "also": None, "style": "base"})
    assert fleet.identity("style") == Identity("also", "style")
    assert fleet.identity("base") == Identity("also")
