"""This implementation's answers to what vectors ask, as `HARNESS.md` says.

Pages are decoded by the oracle, and every plan is proven before it is carried out.
"""

from pathlib import Path
from typing import Final

import numpy as np

from transload_abi import compare, fingerprints, oracle, plan, proof, text
from transload_abi.errors import AbiError, PlanError, Refused
from transload_abi.harness.protocol import Fields, InProcess
from transload_abi.oracle_numbers import bits_type
from transload_abi.types import Descriptor


class _Lossy(Refused):
    """Values would be rounded, and nobody allowed it."""


def _read(fields: Fields) -> Fields:
    d = _descriptor(fields["file"])
    return {
        "canonical": text.encode_json(d).decode(),
        "twin": text.encode_msgpack(d).hex(),
        "fingerprints": fingerprints.of_descriptor(d)._asdict(),
        "group_fingerprints": {
            group.id: found._asdict()
            for group, found in zip(d.groups, fingerprints.of_groups(d), strict=True)
        },
    }


def _decode(fields: Fields) -> Fields:
    d = _descriptor(fields["descriptor"])
    memory = _memory(fields["pools"], d)
    what = (fields["group"], fields["role"], fields["blocks"])
    elements = oracle.read_elements(d, memory, *what)
    Path(fields["elements"]).write_bytes(elements.tobytes())
    group = next(group for group in d.groups if group.id == fields["group"])
    if oracle.has_values(group, fields["role"]):
        values = oracle.read_values(d, memory, *what)
        Path(fields["values"]).write_bytes(values.astype("<f4").tobytes())
    return {"shape": list(elements.shape)}


def _encode(fields: Fields) -> Fields:
    d = _descriptor(fields["descriptor"])
    memory = _memory(fields["pools"], d)
    dtypes = {(group.id, role.role): role.dtype for group in d.groups for role in group.roles}
    for part in fields["parts"]:
        kind = bits_type(dtypes[part["group"], part["role"]])
        elements = np.frombuffer(Path(part["elements"]).read_bytes(), kind).reshape(part["shape"])
        what = (part["group"], part["role"], part["blocks"])
        oracle.write_elements(d, memory, *what, elements)
    _keep(fields["pools"], memory)
    return {}


def _compare(fields: Fields) -> Fields:
    found = compare.compare(_descriptor(fields["src"]), _descriptor(fields["dst"]))
    path = found.refusal.path if found.verdict == "refused" else ""
    return {"verdict": found.verdict, "path": path}


def _move(fields: Fields) -> Fields:
    sources = [_descriptor(source["descriptor"]) for source in fields["sources"]]
    dst = _descriptor(fields["dst"]["descriptor"])
    memory = _memory(fields["dst"]["pools"], dst)
    cover = plan.Cover.compile(sources, dst, allow_lossy=True)
    if not fields["allow_lossy"]:
        _refuse_losses(sources, dst)
    span = (
        _by_table(fields["dst"]["blocks"]),
        fields["num_tokens"],
        fields["first_token"],
        fields.get("num_encoder_tokens"),
    )
    blocks = [plan.Blocks(_by_table(source["blocks"]), *span) for source in fields["sources"]]
    plans = zip(cover.plan(blocks), cover.sources, fields["sources"], strict=True)
    for made, src, source in plans:
        if made is not None and src is not None:
            proof.prove(made, src, dst)
            oracle.execute(made, _memory(source["pools"], src), memory)
    _keep(fields["dst"]["pools"], memory)
    return {}


def _refuse_losses(sources: list[Descriptor], dst: Descriptor) -> None:
    try:
        plan.Cover.compile(sources, dst)
    except Refused as error:
        raise _Lossy(str(error)) from error


def _descriptor(file: str) -> Descriptor:
    return text.read(Path(file).read_bytes())


def _memory(folder: str, d: Descriptor) -> oracle.Memory:
    return {
        pool.id: np.frombuffer(bytearray((Path(folder) / f"{pool.id}.bin").read_bytes()), np.uint8)
        for pool in d.pools
    }


def _keep(folder: str, memory: oracle.Memory) -> None:
    for pool, data in memory.items():
        (Path(folder) / f"{pool}.bin").write_bytes(data.tobytes())


def _by_table(blocks: dict[str, list[int]]) -> dict[int, list[int]]:
    return {int(table): ids for table, ids in blocks.items()}


OURS: Final = InProcess(
    {"read": _read, "decode": _decode, "encode": _encode, "compare": _compare, "move": _move},
    {_Lossy: "lossy", PlanError: "plan", Refused: "missing", AbiError: "invalid"},
)
