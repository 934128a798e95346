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
    """A named tool is left as its name in an object, whichever way it was named."""
    if value is None or value in _CHOICES:
        return value
    if not isinstance(value, dict) or value.get("type") != "function":
        raise PydanticCustomError("needed", "{words}", {"words": f"one of {', '.join(_CHOICES)}, or {NAMED}"})
    function = value.get("function", value)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise PydanticCustomError("needed", "{words}", {"words": NAMED})
    return {"name": function["name"]}


ToolList = Annotated[
    list[dict[str, Any]] | None,
    BeforeValidator(_tools, json_schema_input_type=list[dict[str, Any]] | None),
    Field(description="Functions the reply may call. Arguments of a call that `tool_choice` forces follow their schema."),
]
ToolChoice = Annotated[
    str | dict[str, str] | None,
    BeforeValidator(_tool_choice, json_schema_input_type=str | dict[str, Any] | None),
    Field(description="auto, none, which hides the tools, required, or a named function, which the reply then calls once."),
]
