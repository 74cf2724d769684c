"""Random walks of reserve, release, replace and forget: the figures are the live reservations."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from transload_router.core.load import Load, Reservation
from transload_router.core.types import Address, Engine, Role

NAMES = st.sampled_from(["d0", "d1", "d2"])


class LoadWalk(RuleBasedStateMachine):
    live = Bundle("live")
    released = Bundle("released")

    def __init__(self) -> None:
        super().__init__()
        self.load = Load()
        self.generations = dict.fromkeys(("d0", "d1", "d2"), 0)
        # What counts: reservation to (engine, tokens), those of gone generations left out.
        self.counted: dict[Reservation, tuple[str, int]] = {}

    def _engine(self, name: str, generation: int) -> Engine:
        return Engine(name, Role.DECODE, Address("h", 1), generation)

    def _uncount(self, name: str) -> None:
        self.counted = {one: entry for one, entry in self.counted.items() if entry[0] != name}

    @rule(target=live, name=NAMES, tokens=st.integers(0, 9))
    def reserve(self, name: str, tokens: int) -> Reservation:
        one = self.load.reserve(self._engine(name, self.generations[name]), tokens)
        self.counted[one] = (name, tokens)
        return one

    @rule(target=live, name=NAMES, tokens=st.integers(0, 9))
    def reserve_on_an_older_generation(self, name: str, tokens: int) -> Reservation:
        # The current one has been seen, as in every choice among candidates.
        self.load.of(self._engine(name, self.generations[name]))
        return self.load.reserve(self._engine(name, self.generations[name] - 1), tokens)

    @rule(target=released, one=consumes(live))
    def release(self, one: Reservation) -> Reservation:
        one.release()
        self.counted.pop(one, None)
        return one

    @rule(one=released)
    def release_again(self, one: Reservation) -> None:
        one.release()

    @rule(name=NAMES)
    def replace(self, name: str) -> None:
        self.generations[name] += 1
        self._uncount(name)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        self.load.forget(name)
        self._uncount(name)

    @invariant()
    def figures_are_the_live_reservations(self) -> None:
        for name, generation in self.generations.items():
            figures = self.load.of(self._engine(name, generation))
            tokens = [entry[1] for entry in self.counted.values() if entry[0] == name]
            assert (figures.num_requests, figures.num_tokens) == (len(tokens), sum(tokens))
        assert self.load.num_requests() == len(self.counted)

    def teardown(self) -> None:
        for one in list(self.counted):
            one.release()
        self.counted = {}
        self.figures_are_the_live_reservations()


LoadWalk.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLoad = LoadWalk.TestCase
