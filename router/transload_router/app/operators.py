"""What operators and orchestrators ask of the router itself."""

from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from transload_router.app.probing import Probing
from transload_router.app.state import Router
from transload_router.core.membership import Health, Verdict
from transload_router.core.types import Role


def add_operators_routes(app: FastAPI, router: Router, probing: Probing) -> None:
    """Add /healthz, /readyz and /metrics."""

    @app.get("/healthz", summary="Whether the process serves at all")
    async def healthz() -> JSONResponse:
        if router.defects:
            return JSONResponse({"status": "defect", "defects": router.defects}, status_code=500)
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", summary="Whether requests can be served now, and what does not hand off")
    async def readyz() -> JSONResponse:
        report = readiness(router, probing)
        return JSONResponse(report, status_code=200 if report["is_ready"] else 503)

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(
            router.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )


def readiness(router: Router, probing: Probing) -> dict[str, Any]:
    """Engines, verdicts on handoffs, and whether requests can be served.

    Ready: the first round of probes is over, a decode engine is up, and a prefill engine is, too,
    unless the operator lets decode read prompts.
    """
    needs_prefill = bool(router.settings.prefill) and not router.handoff_policy.local_when_empty
    is_ready = (
        probing.has_looked
        and _has_up(router, Role.DECODE)
        and (not needs_prefill or _has_up(router, Role.PREFILL))
    )
    return {
        "is_ready": is_ready,
        "mode": "disaggregated" if router.settings.prefill else "decode only",
        "engines": [
            {
                "id": member.engine.id,
                "role": member.engine.role.value,
                "health": member.health.value,
                "models": sorted(member.models) if member.models is not None else None,
                **({"detail": member.detail} if member.detail else {}),
            }
            for member in router.fleet.members.values()
        ],
        "handoffs": _verdicts(router),
        "tokenizers": router.tokenizers,
        "releases": {
            decode.engine.id: router.fleet.release(decode.engine.id).value
            for decode in router.fleet.of_role(Role.DECODE)
        },
    }


def _verdicts(router: Router) -> list[dict[str, str]]:
    pairs = router.fleet.pairs()
    return [
        {
            "prefill": prefill.engine.id,
            "decode": decode.engine.id,
            "verdict": pairs.get((prefill.engine.id, decode.engine.id), Verdict.UNKNOWN).value,
        }
        for prefill in router.fleet.of_role(Role.PREFILL)
        for decode in router.fleet.of_role(Role.DECODE)
    ]


def _has_up(router: Router, role: Role) -> bool:
    return any(member.health is Health.UP for member in router.fleet.of_role(role))
