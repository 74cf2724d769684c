"""Which engines there are, whether they are up, what they serve, and which pairs hand off.

An engine is JOINING until its first probe, then UP or DOWN. JOINING engines are chosen like UP
ones, so that a router can serve before its first round of probes; DOWN ones are not chosen.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from transload_router.core.index.keys import Identity
from transload_router.core.types import Engine, Role

# Model id to the id of its base model, or None where it is no adapter.
ServedModels = Mapping[str, str | None]


class Health(enum.StrEnum):
    """Whether an engine is chosen."""

    JOINING = "joining"
    UP = "up"
    DOWN = "down"


class Verdict(enum.StrEnum):
    """What is known of a handoff."""

    UNKNOWN = "unknown"
    WORKS = "works"
    MISSING = "missing"
    FAILS = "fails"


@dataclass(slots=True)
class Member:
    """An engine and what was learned of it.

    Attributes:
        models: What it serves, or None while unknown.
        detail: Why it is down, in words for an operator.
    """

    engine: Engine
    health: Health = Health.JOINING
    models: ServedModels | None = None
    detail: str = ""


@dataclass(slots=True)
class Fleet:
    """All members, by id. Changes in place; never awaits."""

    members: dict[str, Member] = field(default_factory=dict)
    _pools: dict[Role, list[Member]] = field(default_factory=lambda: {role: [] for role in Role})
    _known_models: frozenset[str] = frozenset()
    _identities: dict[str, Identity] = field(default_factory=dict)
    _pairs: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    _releases: dict[str, Verdict] = field(default_factory=dict)

    def add(self, engine: Engine) -> Member:
        """Add an engine; its id must be new."""
        assert engine.id not in self.members
        member = self.members[engine.id] = Member(engine)
        self._pools[engine.role].append(member)
        return member

    def engine(self, engine_id: str) -> Engine:
        """The engine of an id that is a member."""
        return self.members[engine_id].engine

    def of_role(self, role: Role) -> list[Member]:
        """Members of one pool, in the order they were added; not to be changed."""
        return self._pools[role]

    def candidates(
        self, role: Role, model: str | None, avoid: frozenset[str] = frozenset()
    ) -> list[Member]:
        """Members that may take a leg.

        A model that no member is known to serve rules nobody out: engines know their models
        best, and one loaded a moment ago is not known here yet.
        """
        able = [
            m for m in self._pools[role] if m.health is not Health.DOWN and m.engine.id not in avoid
        ]
        if not self.is_known_model(model):
            return able
        return [m for m in able if m.models is None or model in m.models]

    def is_known_model(self, model: str | None) -> bool:
        """Whether some member is known to serve it."""
        return model in self._known_models

    def known_models(self) -> frozenset[str]:
        """All models that members are known to serve."""
        return self._known_models

    def only_model(self) -> str | None:
        """The one model that is served, or None if there are several or none known."""
        models = self._known_models
        return next(iter(models)) if len(models) == 1 else None

    def identity(self, model: str) -> Identity | None:
        """Whose tokens a model's prompts are, the same for all names of one model; None if unknown.

        Base models that some engine lists together are one model under several names
        (`--served-model-name A B`).
        """
        return self._identities.get(model)

    def mark_up(self, engine_id: str, models: ServedModels | None) -> None:
        """The engine answered its probe, and listed its models if it lets us ask."""
        member = self.members[engine_id]
        member.health = Health.UP
        member.detail = ""
        if member.models != models:
            member.models = models
            served = [m.models for m in self.members.values() if m.models]
            self._known_models = frozenset().union(*served)
            self._identities = _identify(served)

    def mark_down(self, engine_id: str, detail: str) -> None:
        """The engine is not there or says so; it is not chosen until it answers again."""
        member = self.members[engine_id]
        member.health = Health.DOWN
        member.detail = detail

    def judge_pair(self, prefill: str, decode: str, verdict: Verdict) -> bool:
        """Record what a pair's handoff did.

        Returns:
            Whether that is news.
        """
        key = (prefill, decode)
        is_news = self._pairs.get(key) is not verdict
        self._pairs[key] = verdict
        return is_news

    def pair(self, prefill: str, decode: str) -> Verdict:
        """What is known of a pair."""
        return self._pairs.get((prefill, decode), Verdict.UNKNOWN)

    def pairs(self) -> dict[tuple[str, str], Verdict]:
        """All verdicts so far; a copy."""
        return dict(self._pairs)

    def is_compatible(self, prefill: str, decode: str) -> bool:
        """Whether decode can read what prefill writes.

        Every pair is taken to be, until engines publish descriptors of their caches.
        """
        return True

    def lacks(self, role: Role, model: str | None) -> bool:
        """Whether no engine of a pool, down ones included, serves a model, and all say so."""
        pool = self._pools[role]
        return (
            bool(pool)
            and self.is_known_model(model)
            and all(m.models is not None and model not in m.models for m in pool)
        )

    def judge_release(self, decode: str, verdict: Verdict) -> None:
        """Record whether a release sent through a decode engine frees prefill's blocks."""
        self._releases[decode] = verdict

    def release(self, decode: str) -> Verdict:
        """Whether a release through this engine is known to work."""
        return self._releases.get(decode, Verdict.UNKNOWN)

    def forget_release(self, engine_id: str) -> None:
        """The engine may come back as another one, with another verdict."""
        self._releases.pop(engine_id, None)


def _identify(served: list[ServedModels]) -> dict[str, Identity]:
    """Identities of all models that engines list."""
    names: dict[str, str] = {}
    for models in served:
        bases = [model for model, base in models.items() if base is None]
        merged = {names.get(base, base) for base in bases}
        names.update(dict.fromkeys(bases, min(merged, default="")))
        for name, known_as in names.items():
            if known_as in merged:
                names[name] = min(merged)
    found = {base: Identity(name) for base, name in names.items()}
    for models in served:
        for model, base in models.items():
            if base is not None:
                found.setdefault(model, Identity(names.get(base, base), model))
    return found
