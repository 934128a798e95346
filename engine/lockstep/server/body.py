"""Request bodies: bytes to a validated model, or a 4xx that says what to change. Knows no endpoint.

Stricter than `json.loads`: no NaN, no Infinity, no repeated keys, no half characters, bounded size and depth."""

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from lockstep.server.errors import ApiError, bad_request

MAX_BODY_BYTES = 32 << 20
MAX_DEPTH = 100
# Above this, parsing leaves the event loop, and above the other this process: running streams would feel it. Text work leaves earlier.
INLINE_BYTES, THREAD_BYTES, ASIDE_BYTES = 1 << 16, 1 << 20, 1 << 14
# More than a prompt of ids has that fills the largest window, with room for what stands around it; and of values that are no numbers,
# which take more time to hand on.
MAX_VALUES, MAX_PARTS = (1 << 20) + (1 << 16), 1 << 17

# When the request that is served was all there, on the monotonic clock.
ARRIVED_S = ContextVar[float]("arrived_s")

# Faults that pydantic tells in words of Python.
_PLAIN = {
    "dict_type": "an object", "model_type": "an object", "list_type": "a list", "too_long": "at most {max_length} of them",
    "too_short": "at least {min_length} of them", "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
}  # fmt: skip

_UNION_BRANCHES = frozenset({"str", "int", "bool", "list", "dict", "none"})

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")


async def aside(of: Request | int, work: Callable[[], Result]) -> Result:
    """What `work` returns; if it is of many bytes it is done in a thread, so that health and running streams do not feel it."""
    size = of if isinstance(of, int) else of.state.sent_bytes
    return work() if size <= ASIDE_BYTES else await asyncio.to_thread(work)


async def read_model(request: Request, kind: type[Model], limit: int = MAX_BODY_BYTES) -> Model:
    """The body, of at most `limit` bytes, as `kind`. Raises ApiError 400, 413 or 415."""
    data = await read_bytes(request, limit)
    if len(data) <= INLINE_BYTES:
        return read_object(data, kind)
    if len(data) <= THREAD_BYTES:
        return await asyncio.to_thread(read_object, data, kind)
    return await request.app.state.deployment.reader.read(data, kind)


def read_object(data: bytes | bytearray, kind: type[Model]) -> Model:
    """`data` as `kind`. Raises ApiError 400."""
    infinite = list[str]()
    model = validate(parse_object(data, infinite), kind)
    if infinite:
        # Behind validation, which names the fields it knows.
        raise bad_request(f"The body holds the number {infinite[0][:40]}, past the largest; needed: finite ones.", code="invalid_json")
    return model


async def read_bytes(request: Request, limit: int = MAX_BODY_BYTES) -> bytearray:
    """The whole body, refused as soon as it is known to be too large."""
    coding = (request.headers.get("content-encoding") or "identity").lower()
    if coding != "identity":
        raise ApiError(
            415, f"Content-Encoding is {coding[:40]}; needed: identity. Send the body uncompressed.", code="unsupported_encoding"
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            if len(data) > limit:
                raise _too_large(len(data), limit)
    except ClientDisconnect:
        raise bad_request("The connection closed before the body was complete.") from None
    request.state.sent_bytes = len(data)
    ARRIVED_S.set(time.monotonic())
    return data


def _too_large(size: int, limit: int) -> ApiError:
    message = f"The body has {size} bytes or more; this server takes {limit}. Shorten the request."
    return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


def parse_object(data: bytes | bytearray, infinite: list[str]) -> dict[str, Any]:
    """A JSON object out of UTF-8 bytes. Raises ApiError 400 naming the place of the fault, never echoing the body.

    Numbers that are infinite to us go to `infinite` as they are spelled."""
    if len(data) > MAX_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        message = f"The body has more than {MAX_VALUES} commas and opening brackets; needed: fewer, no prompt has as many parts."
        raise bad_request(message, code="invalid_json")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(f"The body is not UTF-8 (byte {error.start}); needed: JSON in UTF-8.", code="invalid_json") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=partial(_number, infinite), object_pairs_hook=_refuse_repeats)
    except json.JSONDecodeError as error:
        found = "empty" if not text.strip() else f"no JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise bad_request(f"The body is {found}; needed: one JSON object.", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise bad_request(f"The body holds a number that cannot be read ({str(error)[:80]}).", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request(f"The body is a JSON {_json_type(value)}; needed: an object.", code="invalid_json")
    _check_size(value)
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value)
    return value


def _number(infinite: list[str], digits: str) -> float:
    value = float(digits)
    infinite.extend([digits] if math.isinf(value) else [])
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise bad_request(
        f"The body holds {word}, which is no JSON; needed: finite numbers. Leave the field out for its default.", code="invalid_json"
    )


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise bad_request(f"The body names the key {_brief(repeated)} twice in one object; needed: once.", code="invalid_json")
    return values


def _check_size(value: Any) -> None:
    level, parts = [value], 0
    for _ in range(MAX_DEPTH):
        items = [item for holder in level for item in (holder.values() if isinstance(holder, dict) else holder)]
        level = [item for item in items if isinstance(item, dict | list)]
        names = {name for item in level if isinstance(item, dict) for name in item}
        parts += len(level) + len(names) + sum(isinstance(item, str) for item in items)
        if parts > MAX_PARTS:
            raise bad_request(f"The body has more than {MAX_PARTS} names, texts, objects and lists; needed: fewer.", code="invalid_json")
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return bad_request(f"The body is nested deeper than {MAX_DEPTH} levels; needed: a flatter object.", code="invalid_json")


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        message = "The body holds a lone surrogate (\\ud800 to \\udfff without its other half); needed: whole characters."
        raise bad_request(message, code="invalid_json") from None


def validate(value: dict[str, Any], kind: type[Model], names: Mapping[str, str] = MappingProxyType({})) -> Model:
    """`value` as `kind`. Raises ApiError 400 for the first fault, naming the field in `param`, by what `names` calls it if it does."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        param = _path(fault["loc"]) or ""
        known = next((name for name in (param.partition(".")[0], re.split(r"[.\[]", param)[0]) if name in names), "")
        raise _from_fault(fault, value, names.get(known, "") + param[len(known) :] or None) from None


def _from_fault(fault: ErrorDetails, body: dict[str, Any], param: str | None) -> ApiError:
    context = fault.get("ctx", {})
    if fault["type"] == "unsupported":
        name = context["field"]
        return bad_request(
            f"`{name}` is {_describe(body[name])}, which this server does not serve; {context['instead']}.", name, "unsupported_field"
        )
    if fault["type"] == "missing":
        return bad_request(f"`{param}` is missing; needed: this field. See /openapi.json for the form of a request.", param)
    if fault["type"] == "extra_forbidden":
        return bad_request(f"`{param}` is no option this server knows; remove it. See /openapi.json for those it takes.", param)
    plain = _PLAIN.get(fault["type"], "").format_map(context)
    needed = plain or fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    found = _describe(fault["input"])
    if param is None:
        return bad_request(f"The request does not fit together; needed: {needed}.")
    return bad_request(f"`{param}` is {found}; needed: {needed}. Correct it, or leave an optional field out for its default.", param)


def _path(places: tuple[int | str, ...]) -> str | None:
    """`messages[0].content` out of pydantic's place, without the names it gives to the branches of a union."""
    path = ""
    for place in places:
        if isinstance(place, int):
            path += f"[{place}]"
        elif place.isidentifier() and not place[0].isupper() and place not in _UNION_BRANCHES and len(place) <= 60:
            path += f".{place}" if path else place
    return path or None


def _describe(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {_brief(value)}"
    if value is None or isinstance(value, bool):
        return f"{json.dumps(value)}"
    if isinstance(value, int | float):
        return f"the number {_brief(value)}" if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return f"a JSON {_json_type(value)} of {len(value)}" if isinstance(value, dict | list) else f"a JSON {_json_type(value)}"


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names.get(type(value), "value")
