"""The operator's settings: one definition behind flags, environment and file."""

from transload_router.settings.definition import (
    ENV_PREFIX,
    NO_TOKENIZER,
    Settings,
    check_engine_url,
)
from transload_router.settings.loading import load_settings

__all__ = ["ENV_PREFIX", "NO_TOKENIZER", "Settings", "check_engine_url", "load_settings"]
