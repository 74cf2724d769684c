"""Chat templates, compiled as transformers compiles them."""

import datetime
import json
from collections.abc import Callable
from typing import Any


def compile_template(source: str) -> Callable[..., str]:
    """A template's rendering, which raises ValueError where the template refuses.

    Raises:
        ValueError: It is no template, or jinja2 is not installed.
    """
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ValueError(f"a chat template needs jinja2: {error}") from error

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _now
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"chat template: {error}") from error

    def render(**values: Any) -> str:
        try:
            return template.render(**values)
        except TemplateError as error:
            raise ValueError(str(error)) from error

    return render


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
