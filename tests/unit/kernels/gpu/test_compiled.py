"""`gpu.compiled`: machine code read from literal text, and calls that are written down."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels were not run")

from transload_kernels.gpu import compiled
from transload_kernels.gpu.compiled import CASES, Compiled

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function rows_kernel:
  REG:44 STACK:8 SHARED:1024 LOCAL:16 CONSTANT[0]:800 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

SASS = """
.text.rows_kernel:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   S2R R2, SR_TID.X ;
.L_x_1:
        /*0020*/              @!P0 LDG.E.64 R4, desc[UR4][R2.64] ;
        /*0030*/               @P1 LDG.E.128 R8, desc[UR4][R6.64] ;
        /*0040*/               @P1 LDG.E.128.CONSTANT R12, desc[UR4][R6.64+0x800] ;
        /*0050*/                   LDG.E.U8 R3, desc[UR4][R6.64] ;
        /*0060*/                   LDG.E.U16 R3, desc[UR4][R6.64] ;
        /*0070*/                   LDG.E R3, desc[UR4][R6.64] ;
        /*0080*/                   LDS.128 R3, [R6] ;
        /*0090*/               @P1 STG.E.128 desc[UR4][R6.64], R8 ;
        /*00a0*/                   STG.E.U8 desc[UR4][R6.64], R8 ;
        /*00b0*/                   EXIT ;
"""

AMDGCN = """
\t.text
rows_kernel:
; %bb.0:
\ts_load_dwordx2 s[2:3], s[0:1], 0x0
\tglobal_load_dwordx2 v[2:3], v1, s[2:3]
\tglobal_load_dwordx4 v[4:7], v[2:3], off
\tbuffer_load_ubyte v1, v2, s[0:3], 0 offen
\tds_read_b128 v[4:7], v1
\tglobal_store_dwordx4 v[2:3], v[4:7], off
\tflat_store_short v[2:3], v4
\tglobal_store_byte_d16_hi v[2:3], v4, off
\ts_endpgm
\t.end_amdhsa_kernel
    .group_segment_fixed_size: 0
    .vgpr_count:     54
    .vgpr_spill_count: 3
"""


def test_a_cubin_is_read_by_its_own_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compiled, "_output_of", lambda tool, *options: USAGE if "-res-usage" in options else SASS
    )
    assert compiled._of_cubin(b"", 2048) == Compiled(
        registers=44,
        spills=24,
        shared_bytes=2048,
        loads={128: 2, 64: 1, 32: 1, 16: 1, 8: 1},
        stores={128: 1, 8: 1},
        instructions=12,
    )


def test_amds_code_is_read_as_text() -> None:
    assert compiled._of_amdgcn(AMDGCN, 512) == Compiled(
        registers=54,
        spills=3,
        shared_bytes=512,
        loads={128: 1, 64: 1, 8: 1},
        stores={128: 1, 16: 1, 8: 1},
        instructions=9,
    )


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_argument_of_a_recorded_launch_has_a_type(case: Any) -> None:
    launch = compiled.record(case)
    types = compiled.signature_of(launch)
    assert list(types) == [parameter.name for parameter in launch.kernel.params]
    assert all(types.values())
    assert {name for name, kind in types.items() if kind == "constexpr"} == set(launch.constants)
    assert len(types) == len(launch.arguments) + len(launch.constants)


def test_a_tool_that_fails_is_not_passed_over() -> None:
    with pytest.raises(FileNotFoundError):
        compiled._output_of("/there/is/no/such/tool")
