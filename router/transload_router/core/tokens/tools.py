"""Tools as the engine shows them to a template: its own models' dump, not the client's members.

Of `ChatCompletionToolsParam` and `FunctionDefinition` (vLLM 0.32.0,
`entrypoints/openai/chat_completion/protocol.py`, `entrypoints/generate/base/protocol.py`): known
members in the models' order, absent ones null, `strict` and `defer_loading` only where set.
"""

from typing import Any

from transload_router.core.tokens.job import Reason, Unreadable


def chat_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The `tools` of a chat request.

    Raises:
        Unreadable: The engine refuses them.
    """
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise Unreadable(Reason.INVALID)
    return [_tool(tool) for tool in tools]


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise Unreadable(Reason.INVALID)
    deferred = _flag(tool.get("defer_loading"))
    function = function_dump(tool.get("function"))
    if deferred is None:
        return {"type": "function", "function": function}
    function.setdefault("defer_loading", deferred)
    return {"type": "function", "function": function, "defer_loading": deferred}


def function_dump(function: Any) -> dict[str, Any]:
    """One function's definition.

    Raises:
        Unreadable: The engine refuses it.
    """
    if not isinstance(function, dict):
        raise Unreadable(Reason.INVALID)
    name, description = function.get("name"), function.get("description")
    parameters = function.get("parameters")
    is_valid = (
        isinstance(name, str)
        and (description is None or isinstance(description, str))
        and (parameters is None or isinstance(parameters, dict))
    )
    if not is_valid:
        raise Unreadable(Reason.INVALID)
    dump = {"name": name, "description": description, "parameters": parameters}
    for member in ("strict", "defer_loading"):
        value = _flag(function.get(member))
        if value is not None:
            dump[member] = value
    return dump


def _flag(value: Any) -> bool | None:
    # The engine's models also take words and numbers for booleans; nobody sends those.
    if value is None or isinstance(value, bool):
        return value
    raise Unreadable(Reason.INVALID)
