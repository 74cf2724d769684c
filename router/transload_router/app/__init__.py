"""The service: ASGI wiring, the endpoints, metrics."""

from transload_router.app.asgi import create_app

__all__ = ["create_app"]
