"""The tool fields of a request: shapes that are served, and what is refused by name. Knows bounds, no tokens."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from lockstep.text.errors import TextError
from lockstep.text.toolset import check_tools

_CHOICES = ("none", "auto", "required")
NAMED = '{"type": "function", "function": {"name": ...}}'


def _tools(value: Any) -> Any:
    """Left as sent: templates print the keys of a tool in the client's order."""
    if value is None:
        return None
    try:
        if not isinstance(value, list):
            raise TextError("a list of tools")
        check_tools(value)
    except TextError as error:
        raise PydanticCustomError("needed", "{words}", {"words": str(error)}) from None
    return value


def _tool_choice(value: Any) -> Any:
    """A named tool is left as its name in an object, whichever way it was named; allowed ones as theirs, with auto or required."""
    if value is None or value in _CHOICES:
        return value
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _allowed(value.get("allowed_tools", value))
    if not isinstance(value, dict) or value.get("type") != "function":
        raise PydanticCustomError("needed", "{words}", {"words": f"one of {', '.join(_CHOICES)}, or {NAMED}"})
    function = value.get("function", value)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise PydanticCustomError("needed", "{words}", {"words": NAMED})
    return {"name": function["name"]}


def _allowed(told: Any) -> Any:
    mode, tools = (told.get("mode", "auto"), told.get("tools")) if isinstance(told, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise PydanticCustomError("needed", "{words}", {"words": "allowed_tools with the mode auto or required and a list of tools"})
    functions = [tool.get("function", tool) for tool in tools]
    return {"mode": mode, "names": [function.get("name") for function in functions if isinstance(function, dict)]}


ToolList = Annotated[
    list[dict[str, Any]] | None,
    BeforeValidator(_tools, json_schema_input_type=list[dict[str, Any]] | None),
    Field(description="Functions the reply may call. Arguments of a call that `tool_choice` forces follow their schema."),
]
ToolChoice = Annotated[
    str | dict[str, Any] | None,
    BeforeValidator(_tool_choice, json_schema_input_type=str | dict[str, Any] | None),
    Field(description="auto, none, which hides the tools, required, or a named function, which is then called once; or allowed_tools."),
]
