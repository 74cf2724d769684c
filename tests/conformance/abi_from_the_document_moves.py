"""Comparing descriptors, moving blocks and running the vectors, from the ABI's document alone.

`run` returns what is wrong with the vectors of a directory, a line each. Comments name the
document's sections, and what had to be found out from the vectors.
"""

import json
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from conformance.abi_from_the_document import (
    FLOAT,
    RefusedError,
    Tree,
    number,
    parse_json,
    read,
    write_twin,
)
from conformance.abi_from_the_document_values import (
    FLOATS,
    Cache,
    canonical,
    decode,
    encode,
    fingerprints,
    group_fingerprints,
    indices,
    role_of,
    short,
    single,
    text_of,
)

VERDICTS = ("identical", "lossless", "lossy", "refused")
VALUE_ROLES = ("k", "v", "latent", "rope", "conv", "ssm")


class Verdict(NamedTuple):
    """A verdict of section 8, and the field that forbids where it is `refused`."""

    name: str
    path: str = ""


def worst(verdicts: list[Verdict]) -> Verdict:
    """The worst of some verdicts, the first of equals."""
    none = Verdict("identical")
    return max(verdicts, key=lambda verdict: VERDICTS.index(verdict.name), default=none)


# --- 8: comparing --------------------------------------------------------------------------------


def compare(source: Tree, target: Tree) -> list[Verdict]:
    """A verdict for each group of the target that has a layer in the source, both canonical.

    Where no group has one, the only verdict is `refused`.
    """
    model = _other_model(source["model"], target["model"])
    if model:
        return [Verdict("refused", model)]
    verdicts = []
    for i, new in enumerate(target["groups"]):
        for old in source["groups"]:
            if new["transferable"] and old["transferable"] and shared_layers(old, new):
                verdicts.append(_group_verdict(old, new, f"groups[{i}]"))
    if not verdicts:
        travelling = [i for i, g in enumerate(target["groups"]) if g["transferable"]]
        verdicts = [Verdict("refused", f"groups[{i}].layers") for i in travelling]
    return verdicts


def shared_layers(old: Tree, new: Tree) -> list[int]:
    """The layers that two groups hold, in the order of the second."""
    return [layer for layer in new["layers"] if layer in old["layers"]]


def _other_model(old: Tree, new: Tree) -> str:
    both = old["weights"] and new["weights"]
    for name in (["weights"] if both else ["name", "revision"]) + [
        "adapter",
        "num_layers",
        "kv_share",
    ]:
        if old[name] != new[name]:
            return f"model.{name}"
    state = new["rope"]["state"]
    if state == "unknown" or state != old["rope"]["state"]:
        return "model.rope.state"
    ours, theirs = new["rope"]["params"], old["rope"]["params"]
    for name in sorted(ours.keys() | theirs.keys()):
        missing = (name in ours) != (name in theirs)
        if missing or _by_value(ours[name]) != _by_value(theirs[name]):
            return f"model.rope.params.{name}"
    return ""


def _by_value(param: Any) -> Any:
    if isinstance(param, list):
        return [_by_value(item) for item in param]
    return number(param) if isinstance(param, str) and FLOAT.fullmatch(param) else param


def _group_verdict(old: Tree, new: Tree, path: str) -> Verdict:
    kinds = (old["kind"], new["kind"])
    if kinds[0] != kinds[1] and not (kinds == ("full", "sliding_window") and old["window"]):
        return Verdict("refused", f"{path}.kind")
    for name in ("window", "tokens_per_state"):
        if old[name] != new[name]:
            return Verdict("refused", f"{path}.{name}")
    ours, theirs = new["owner"]["heads"], old["owner"]["heads"]
    if ours[2] != theirs[2]:
        return Verdict("refused", f"{path}.owner.heads")
    values = [role["role"] for role in new["roles"] if role["role"] in VALUE_ROLES]
    if values != [role["role"] for role in old["roles"] if role["role"] in VALUE_ROLES]:
        return Verdict("refused", f"{path}.roles")
    for i, role in enumerate(new["roles"]):
        name = role["role"]
        if name in values and role["shape"]["D"] != role_of(old, name)["shape"]["D"]:
            return Verdict("refused", f"{path}.roles[{i}].shape.D")
    if kinds[1] == "ring" and old["tokens_per_block"] != new["tokens_per_block"]:
        return Verdict("refused", f"{path}.tokens_per_block")
    # Not in the document: a vector has it that slices without a common head are refused here.
    if max(ours[0], theirs[0]) >= min(ours[1], theirs[1]):
        return Verdict("refused", f"{path}.owner.heads")
    return Verdict(_kept(old, new))


def _kept(old: Tree, new: Tree) -> str:
    same_page = all(
        short(old, "Group").get(name) == short(new, "Group").get(name)
        for name in ("roles", "tokens_per_block", "tokens_per_state")
    )
    same_owner = all(old["owner"][name] == new["owner"][name] for name in ("heads", "tokens"))
    moves = moves_only(old, new)
    if moves and same_page and same_owner:
        return "identical"
    if moves:
        return "lossless"
    values = [role["role"] for role in new["roles"] if role["role"] in VALUE_ROLES]
    return "lossless" if all(_role_kept(old, new, name) for name in values) else "lossy"


def moves_only(old: Tree, new: Tree) -> bool:
    """Whether codec, parameters and dtypes are the same for the layers that both have."""

    def what(g: Tree) -> Any:
        positions = [g["layers"].index(layer) for layer in shared_layers(old, new)]
        params = g["codec"]["params"].items()
        scales = {name: [scale[i] for i in positions] for name, scale in params}
        return g["codec"]["id"], scales, {role["role"]: role["dtype"] for role in g["roles"]}

    return bool(what(old) == what(new))


def _role_kept(old: Tree, new: Tree, name: str) -> bool:
    """Whether each value that a role can hold is one of the other side's (8, 5)."""
    before, after = role_of(old, name)["dtype"], role_of(new, name)["dtype"]
    codec = old["codec"]["id"]
    plain = codec == "none" or (codec == "fp8_ds_mla_656" and name == "rope")
    bare = new["codec"]["id"] == "none" or (
        new["codec"]["id"] == "fp8_ds_mla_656" and name == "rope"
    )
    if not bare:
        return False
    if after == "f32" or (plain and before == after):
        return True
    if codec != "fp8_per_tensor":
        return False
    _, digits, bias, largest, _ = FLOATS[after]
    least = math.ldexp(1.0, 1 - bias - digits)
    for layer in shared_layers(old, new):
        scale = number(old["codec"]["params"][f"scales.{name}"][old["layers"].index(layer)])
        small = decode(before, 1) * scale
        if math.frexp(scale)[0] != 0.5 or small < least or FLOATS[before][3] * scale > largest:
            return False
    return True


# --- 9: moving -----------------------------------------------------------------------------------


class Held:
    """The states of a request that a group's list of blocks holds, one side of a transfer."""

    def __init__(self, g: Tree, blocks: list[int], num_tokens: int) -> None:
        """`blocks` is the list of the group's table, aligned at its tail."""
        self.g, self.blocks, self.num_tokens = g, blocks, num_tokens
        self.cut = g["owner"]["tokens"]
        self.states = g["tokens_per_block"] * g["tokens_per_state"][1] // g["tokens_per_state"][0]
        tokens, turn = g["tokens_per_block"], self.cut["interleave"] * self.cut["size"]
        if tokens % self.cut["interleave"] == 0:
            count = -(-num_tokens // (tokens * self.cut["size"]))
        else:
            rest = num_tokens % turn - self.cut["rank"] * self.cut["interleave"]
            mine = num_tokens // turn * self.cut["interleave"]
            count = -(-(mine + min(max(rest, 0), self.cut["interleave"])) // tokens)
        self.first = count - len(blocks)
        if g["kind"] == "cross":  # nothing says how many positions there are: lists are whole
            self.first = 0
        if g["kind"] in ("recurrent", "ring"):
            self.first, self.blocks = 0, blocks[-1:]

    def tokens(self, state: int) -> range:
        """The tokens of a state, which is counted over all ranks."""
        of, states = self.g["tokens_per_state"]
        return range(state * of // states, ((state + 1) * of - 1) // states + 1)

    def all(self) -> Iterator[tuple[int, int, int]]:
        """Each state of the list with its block and its index there, null blocks left out."""
        for i, block in enumerate(self.blocks):
            if block != self.g["null_block"]:
                for n in range(self.states):
                    yield self._of_all((self.first + i) * self.states + n), block, n

    def _of_all(self, local: int) -> int:
        step, size = self.cut["interleave"], self.cut["size"]
        return int(local // step * (step * size) + self.cut["rank"] * step + local % step)

    def find(self, state: int) -> tuple[int | None, int] | None:
        """The block and the index of a state; None as block: not held; None: another rank's."""
        step, size = self.cut["interleave"], self.cut["size"]
        if state // step % size != self.cut["rank"]:
            return None
        local = state // (step * size) * step + state % step
        at = local // self.states - self.first
        inside = 0 <= at < len(self.blocks)
        block = self.blocks[at] if inside and self.blocks[at] != self.g["null_block"] else None
        return block, local % self.states

    def seen(self, state: int, kind: str) -> bool:
        """Whether the last token's query sees a token of the block that a state is in."""
        step, size = self.cut["interleave"], self.cut["size"]
        local = state // (step * size) * step + state % step
        first = local // self.states * self.states
        query, window = self.num_tokens - 1, self.g["window"]
        begin = 0
        if kind.startswith("sliding_window"):
            begin = query - window + 1
        elif kind == "chunked_local":
            begin = query // window * window
        block = (self._of_all(first + i) for i in range(self.states))
        return any(begin <= token <= query for s in block for token in self.tokens(s))


# A cache, a group, a layer position, a block and an index of head and state.
Here = tuple[Cache, Tree, int, int, dict[str, int]]


class Source(NamedTuple):
    """One source of a transfer: a cache and the request's blocks for each table."""

    cache: Cache
    blocks: dict[int, list[int]]


class Offer(NamedTuple):
    """A group of a source that has layers of the destination's group."""

    cache: Cache
    group: Tree
    held: Held
    only_moves: bool


def move(
    sources: list[Source],
    target: Source,
    num_tokens: int,
    first_token: int = 0,
    allow_losses: bool = False,
) -> None:
    """Move the blocks of a request, element by element."""
    new_one = target.cache.descriptor
    verdict = worst([v for s in sources for v in compare(s.cache.descriptor, new_one)])
    if verdict.name == "refused" or (verdict.name == "lossy" and not allow_losses):
        raise RefusedError(verdict.path, f"the verdict is {verdict.name}")
    for new in new_one["groups"]:
        if not new["transferable"]:
            continue
        to = Held(new, target.blocks[new["table"]], num_tokens)
        offers = [
            Offer(s.cache, old, Held(old, s.blocks[old["table"]], num_tokens), moves_only(old, new))
            for s in sources
            for old in s.cache.descriptor["groups"]
            if old["transferable"] and shared_layers(old, new)
        ]
        counted = new["kind"] not in ("cross", "recurrent", "ring")
        for state, block, n in to.all():
            tokens = to.tokens(state)
            if counted and (tokens[0] >= num_tokens or tokens[-1] < first_token):
                continue
            for layer, head in product(new["layers"], range(*new["owner"]["heads"][:2])):
                at = {"H": head - new["owner"]["heads"][0], "N": n}
                here = (target.cache, new, new["layers"].index(layer), block, at)
                _move_state(offers, (layer, head, state), here)


def _move_state(offers: list[Offer], what: tuple[int, int, int], here: Here) -> None:
    """Move all roles of one layer, head and state from the first source that holds it."""
    layer, head, state = what
    cache, new, *where, at = here
    missing = []
    for source, old, held, only_moves in offers:
        first, end, _ = old["owner"]["heads"]
        found = held.find(state)
        if layer not in old["layers"] or not first <= head < end or found is None:
            continue
        block, n = found
        if block is None:
            missing.append(held.seen(state, new["kind"]))
            continue
        position, come = old["layers"].index(layer), {"H": head - first, "N": n}
        for role in new["roles"]:
            name, shape = role["role"], role["shape"]
            indices = [{"D": i, "G": i} for i in range(shape.get("D", shape.get("G", 1)))]
            if only_moves:
                for i in indices:
                    element = source.get(old, name, position, block, come | i)
                    cache.put(new, name, where[0], where[1], at | i, element)
            elif name in VALUE_ROLES:
                _store(
                    here,
                    name,
                    [source.value(old, name, position, block, come | i) for i in indices],
                )
        return
    if not missing or any(missing):
        raise LookupError(f"no source holds layer {layer}, head {head}, state {state}")


def _store(here: Here, name: str, values: list[float]) -> None:
    """Write the values of one state under the codec of the destination (8.5)."""
    cache, g, layer, block, at = here
    dtype, codec = role_of(g, name)["dtype"], g["codec"]["id"]
    scales = [1.0] * len(values)
    if codec == "fp8_per_tensor":
        scales = [number(g["codec"]["params"][f"scales.{name}"][layer])] * len(values)
    elif codec == "per_token_head" or (codec == "fp8_ds_mla_656" and name == "latent"):
        width = 128 if name == "latent" else len(values)
        largest = FLOATS[dtype][3] if dtype in FLOATS else 127.0
        for i in range(0, len(values), width):
            top = max(abs(value) for value in values[i : i + width])
            scale = single(top / largest) if top else 1.0
            scales[i : i + width] = [scale] * width
            where = at | {"G": i // width}
            cache.put(g, f"{name}_scale", layer, block, where, encode("f32", scale))
    for i, (value, scale) in enumerate(zip(values, scales, strict=True)):
        cache.put(g, name, layer, block, at | {"D": i}, encode(dtype, single(value / scale)))


# --- 12: vectors ---------------------------------------------------------------------------------


def vectors(directory: Path) -> list[str]:
    """The names of the vectors in a directory, as `check` takes them."""
    cases = [
        p.parent for kind in ("decode", "convert") for p in directory.glob(f"{kind}/*/case.json")
    ]
    files = [p for kind in ("accepted", "refused") for p in directory.glob(f"{kind}/*")]
    return sorted(str(p.relative_to(directory)) for p in cases + files if p.name != "index.json")


def check(directory: Path, name: str) -> list[str]:
    """What is wrong with one vector."""
    kind = name.split("/")[0]
    checks = {"decode": _decode, "convert": _convert, "accepted": _accepted, "refused": _refused}
    try:
        return [f"{name}: {fault}" for fault in checks[kind](directory / name)]
    except (RefusedError, LookupError) as error:
        return [f"{name}: {error}"]


def run(directory: Path) -> list[str]:
    """What is wrong with all vectors of a directory."""
    return [fault for name in vectors(directory) for fault in check(directory, name)]


def _load(path: Path, pools: Path | None = None) -> Cache:
    descriptor = canonical(read(path.read_bytes()))
    sizes = {pool["id"]: pool["num_bytes"] for pool in descriptor["pools"]}
    data = {
        name: bytearray((pools / f"{name}.bin").read_bytes())
        if pools
        else bytearray(b"\xa5" * size)
        for name, size in sizes.items()
    }
    return Cache(descriptor, data)


def _decode(path: Path) -> Iterator[str]:
    data = (path / "descriptor.json").read_bytes()
    case = json.loads((path / "case.json").read_text())
    cache = _load(path / "descriptor.json", path / "pools")
    blank = _load(path / "descriptor.json")
    d = cache.descriptor
    if text_of(d).encode() != data:
        yield "another canonical JSON"
    if read(write_twin(parse_json(data)), twin=True) != read(data):
        yield "another twin"
    if fingerprints(d) != case["fingerprints"]:
        yield f"fingerprints {fingerprints(d)}"
    for g in d["groups"]:
        if group_fingerprints(d, g) != case["group_fingerprints"][g["id"]]:
            yield f"fingerprints of {g['id']}: {group_fingerprints(d, g)}"
        for role in g["roles"]:
            file = f"{g['id']}.{role['role']}.bin"
            elements = (path / "elements" / file).read_bytes()
            values = (path / "values" / file).read_bytes()
            got, size = [bytearray(), bytearray()], role["bits"] // 8
            for layer in range(len(g["layers"])):
                for block in case["groups"][g["id"]]["blocks"]:
                    for index in indices(role):
                        element = cache.get(g, role["role"], layer, block, index)
                        value = cache.value(g, role["role"], layer, block, index)
                        start = len(got[0])
                        raw = int.from_bytes(elements[start : start + size], "little")
                        blank.put(g, role["role"], layer, block, index, raw)
                        got[0] += element.to_bytes(size, "little")
                        got[1] += encode("f32", value).to_bytes(4, "little")
            if got[0] != elements:
                yield f"other elements in {file}"
            if got[1] != values:
                yield f"other values in {file}"
    for name, pool in blank.pools.items():
        if pool != cache.pools[name]:
            yield f"other bytes in pool {name} after writing the elements"


def _convert(path: Path) -> Iterator[str]:
    case = json.loads((path / "case.json").read_text())
    refused = case["verdict"] == "refused"
    target = _load(path / "dst.json")
    for file in path.glob("*.json"):
        if file.name != "case.json" and text_of(read(file.read_bytes())) != file.read_text():
            yield f"{file.name} is not canonical"
    sources, verdicts = [], []
    for told in case["sources"]:
        name = f"src-{told['number']}"
        cache = _load(path / f"{name}.json", None if refused else path / name)
        verdict = worst(compare(cache.descriptor, target.descriptor))
        verdicts.append(verdict)
        if verdict.name != told["verdict"]:
            yield f"{name} is {verdict}"
        sources.append(Source(cache, _lists(told.get("blocks", {}))))
    total = worst(verdicts)
    if total.name != case["verdict"] or total.path != case.get("path", ""):
        yield f"the verdict is {total}"
    if refused:
        return
    wanted = Source(target, _lists(case["dst_blocks"]))
    if total.name == "lossy":
        try:
            move(sources, wanted, case["num_tokens"], case["first_token"])
            yield "moved with losses that nobody allowed"
        except RefusedError:
            pass
    move(sources, wanted, case["num_tokens"], case["first_token"], allow_losses=True)
    for name, pool in target.pools.items():
        told = (path / "dst" / f"{name}.bin").read_bytes()
        wrong = [i for i in range(len(pool)) if pool[i] != told[i]]
        if wrong or len(pool) != len(told):
            yield f"{len(wrong)} other bytes in pool {name}, the first at {wrong[:1]}"


def _lists(blocks: dict[str, list[int]]) -> dict[int, list[int]]:
    return {int(table): ids for table, ids in blocks.items()}


def _accepted(path: Path) -> Iterator[str]:
    plain = read((path.parent / "plain.json").read_bytes())
    this = read(path.read_bytes(), twin=path.suffix == ".msgpack")
    if text_of(this) != text_of(plain):
        yield "says something else"
    if path.suffix == ".msgpack" and write_twin(json.loads(text_of(this))) != path.read_bytes():
        yield "another twin"


def _refused(path: Path) -> Iterator[str]:
    try:
        read(path.read_bytes(), twin=path.suffix == ".msgpack")
    except RefusedError:
        return
    yield "is not refused"
