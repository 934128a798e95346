"""The tool fields of a request: shapes that are served, and what is refused by name. Knows bounds, no tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from lockstep.text.errors import TextError
from lockstep.text.toolset import check_tools

_CHOICES = ("none", "auto")


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
    """`required` and named tools need a grammar over the reply; asking the model kindly would not force a call."""
    if value is None or value in _CHOICES:
        return value
    forced = value == "required" or (isinstance(value, dict) and value.get("type") in ("function", "allowed_tools"))
    if forced:
        raise PydanticCustomError(
            "unsupported", "{instead}", {"instead": 'send "auto", and offer only the tool that has to be called', "field": "tool_choice"}
        )
    raise PydanticCustomError("needed", "{words}", {"words": 'one of "auto" and "none"'})


ToolList = Annotated[
    list[dict[str, Any]] | None,
    BeforeValidator(_tools, json_schema_input_type=list[dict[str, Any]] | None),
    Field(description="Functions the reply may call. `strict` is taken and not enforced."),
]
ToolChoice = Annotated[
    str | None,
    BeforeValidator(_tool_choice, json_schema_input_type=str | dict[str, Any] | None),
    Field(description="auto, or none, which hides the tools. required and named tools are refused."),
]
