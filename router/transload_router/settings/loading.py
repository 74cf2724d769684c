"""Where settings come from: flags, environment, file, in this order of precedence."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
)

from transload_router.errors import ConfigError
from transload_router.settings.definition import ENV_PREFIX, Settings


def load_settings(argv: Sequence[str], *, prog: str = "transload serve") -> Settings:
    """Settings from flags, environment and file.

    Raises:
        ConfigError: Naming each setting that is wrong.
        SystemExit: `--help` was asked for, or a flag is unknown.
    """
    path = _config_path(argv)
    from_file = _read_file(Path(path)) if path else {}

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            cli: CliSettingsSource[Any] = CliSettingsSource(
                settings_cls, cli_parse_args=list(argv), cli_prog_name=prog
            )
            environment = _EnvironmentSource(settings_cls)
            return (cli, environment, InitSettingsSource(settings_cls, init_kwargs=from_file))

    Loaded.__doc__ = "Serve one OpenAI-compatible endpoint in front of prefill and decode engines."
    try:
        return Loaded()
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


class _EnvironmentSource(EnvSettingsSource):
    """The environment without Kubernetes' link to a Service called transload."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        port = f"{ENV_PREFIX}PORT".lower()
        return {
            name: value
            for name, value in super()._load_env_vars().items()
            if not (name == port and value is not None and value.startswith("tcp://"))
        }


def _config_path(argv: Sequence[str]) -> str | None:
    path = os.environ.get(f"{ENV_PREFIX}CONFIG")
    for index, flag in enumerate(argv):
        if flag == "--config" and index + 1 < len(argv):
            path = argv[index + 1]
        elif flag.startswith("--config="):
            path = flag.partition("=")[2]
    return path


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"config: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config: {path} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        # Not the error's own text: it quotes the line, which may hold a key.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"config: {path} is not YAML{where}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConfigError(f"config: {path} must hold a mapping of settings")
    return content


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {message}" if where else message)
    return "\n".join(lines)
