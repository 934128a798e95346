"""Tool calls in the published syntax: tools made of a verb, a noun and typed parameters; single, parallel, none; answers from results.

Tool names are held out by hash, so a held-out request always names a tool that training has never shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from embedded.make.data.conversation import Call, Thoughts, Turn, to_json
from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import CITIES, COLORS, NAMES, OBJECTS, made_up_word, word
from embedded.make.data.split import Split, draw

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """`phrase` is how a user says it in a sentence; `{v}` is the value."""

    name: str
    kind: str
    description: str
    phrase: str
    value: Callable[[Random], Any]
    options: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        if self.kind == "array":
            return {"type": "array", "items": {"type": "string"}, "description": self.description}
        if self.options:
            return {"type": "string", "enum": list(self.options), "description": self.description}
        return {"type": self.kind, "description": self.description}


def _date(rng: Random) -> str:
    return f"{rng.randrange(2024, 2031)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"


def _time(rng: Random) -> str:
    return f"{rng.randrange(24):02d}:{rng.choice((0, 15, 30, 45)):02d}"


def _option(name: str, description: str, phrase: str, *options: str) -> Parameter:
    return Parameter(name, "string", description, phrase, lambda rng: rng.choice(options), options)


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("city", "string", "Name of the city", "in {v}", lambda rng: rng.choice(CITIES)),
    Parameter("name", "string", "Name of the person", "for {v}", lambda rng: rng.choice(NAMES)),
    Parameter("title", "string", "Title text", "with the title {v}", lambda rng: f"{word(rng)} {word(rng)}"),
    Parameter("code", "string", "Code word", "with the code {v}", made_up_word),
    Parameter("color", "string", "Color name", "with the color {v}", lambda rng: rng.choice(COLORS)),
    Parameter("date", "string", "Date as YYYY-MM-DD", "on {v}", _date),
    Parameter("time", "string", "Time as HH:MM", "at {v}", _time),
    Parameter("path", "string", "File path", "from the path {v}", lambda rng: f"/data/{word(rng)}.txt"),
    Parameter("days", "integer", "Number of days", "for {v} days", lambda rng: rng.randrange(2, 31)),
    Parameter("count", "integer", "How many", "with a count of {v}", lambda rng: rng.randrange(1, 100)),
    Parameter("limit", "integer", "Largest number of results", "with a limit of {v}", lambda rng: rng.randrange(1, 100)),
    Parameter("page", "integer", "Page number", "on page {v}", lambda rng: rng.randrange(1, 50)),
    Parameter(
        "price", "number", "Price in euros", "with a price of {v}", lambda rng: rng.randrange(1, 100) + rng.choice((0.5, 0.25, 0.75))
    ),
    Parameter("ratio", "number", "Ratio between 0 and 1", "with a ratio of {v}", lambda rng: rng.randrange(1, 100) / 100),
    Parameter("urgent", "boolean", "Whether it is urgent", "with urgent set to {v}", lambda rng: rng.random() < 0.5),
    Parameter("detailed", "boolean", "Whether details are wanted", "with detailed set to {v}", lambda rng: rng.random() < 0.5),
    _option("unit", "Unit of temperature", "in {v}", "celsius", "fahrenheit"),
    _option("priority", "Priority", "with {v} priority", "low", "medium", "high"),
    _option("format", "Output format", "in {v} format", "text", "json", "csv"),
    Parameter("tags", "array", "List of tags", "with the tags {v}", lambda rng: [word(rng) for _ in range(rng.randrange(1, 4))]),
)
VERBS = "get set find make send open close start stop read write show update delete check move copy book play list".split()  # noqa: SIM905
NOUNS = """report ticket order file note alarm timer table room song photo event task message account payment invoice
server lamp door engine price stock train flight hotel map route form list user player score camera sensor backup index
query""".split()  # noqa: SIM905
ASKS = (
    "Please {verb} the {noun}{rest}.",
    "{Verb} the {noun}{rest}.",
    "Can you {verb} the {noun}{rest}?",
    "I want you to {verb} the {noun}{rest}.",
    "{Verb} a {noun}{rest}.",
)


def _free(rng: Random) -> Parameter:
    """A parameter of any name, so that keys are copied from the schema and not known by heart."""
    name = rng.choice(OBJECTS) if rng.random() < 0.5 else made_up_word(rng)
    kind, value = rng.choice(
        (
            ("string", word),
            ("integer", lambda rng: rng.randrange(1000)),
            ("number", lambda rng: rng.randrange(1, 100) + 0.5),
            ("boolean", lambda rng: rng.random() < 0.5),
        )
    )
    return Parameter(name, kind, f"The {name}", f"with the {name} {{v}}", value)


def _some_parameters(rng: Random) -> list[Parameter]:
    """0 to 4 parameters with different names, one in six of any name."""
    chosen = rng.sample(PARAMETERS, rng.choice((0, 1, 1, 2, 2, 3, 4)))
    mixed = [_free(rng) if rng.random() < 1 / 6 else parameter for parameter in chosen]
    return list({parameter.name: parameter for parameter in mixed}.values())


def _tool(name: str, description: str, parameters: list[Parameter], required: int, described: bool = True) -> Tool:
    parts = {p.name: p.schema() if described else {k: v for k, v in p.schema().items() if k != "description"} for p in parameters}
    schema: dict[str, Any] = {"type": "object", "properties": parts}
    if parameters:
        schema["required"] = [p.name for p in parameters[:required]]
    return {"name": name, "description": description, "parameters": schema}


@dataclass(frozen=True, slots=True)
class Offer:
    """A declared tool with one concrete request for it."""

    tool: Tool
    request: str
    call: Call


def _spoken(value: Any) -> str:
    if isinstance(value, list):
        return value[0] if len(value) == 1 else ", ".join(value[:-1]) + " and " + value[-1]
    return value if isinstance(value, str) else to_json(value)


def composed(rng: Random, split: Split, taken: frozenset[str] = frozenset()) -> Offer:
    """A tool `verb_noun` with 0 to 4 parameters, and a request that uses the required ones and some others."""

    def make() -> tuple[str, str]:
        return rng.choice(VERBS), made_up_word(rng) if rng.random() < 0.1 else rng.choice(NOUNS)

    verb, noun = draw(split, "tool", make, "_".join)
    while f"{verb}_{noun}" in taken:
        verb, noun = draw(split, "tool", make, "_".join)
    parameters = _some_parameters(rng)
    required = rng.randrange(1, len(parameters) + 1) if parameters else 0
    used = [p for i, p in enumerate(parameters) if i < required or rng.random() < 0.6]
    arguments = {p.name: p.value(rng) for p in used}
    if rng.random() < 0.7:
        rest = "".join(" " + p.phrase.format(v=_spoken(arguments[p.name])) for p in used)
    else:
        pairs = [f"{p.name} {_spoken(arguments[p.name])}" for p in used]
        rest = f" with {', '.join(pairs)}" if pairs else ""
    request = rng.choice(ASKS).format(verb=verb, Verb=verb.capitalize(), noun=noun, rest=rest)
    if rng.random() < 0.15:
        request = f"Use the tool {verb}_{noun}{rest}."
    tool = _tool(f"{verb}_{noun}", f"{verb.capitalize()} the {noun}", parameters, required, rng.random() < 0.8)
    return Offer(tool, request, Call(tool["name"], arguments))


def weather(rng: Random, split: Split) -> Offer:
    city = draw(split, "weather", lambda: rng.choice(CITIES) if rng.random() < 0.5 else made_up_word(rng).capitalize())
    key = rng.choice(("city", "city", "city", "location"))
    parameters = [replace(PARAMETERS[0], name=key), *([PARAMETERS[16]] if rng.random() < 0.4 else [])]
    arguments: dict[str, Any] = {key: city}
    form = rng.choice(
        (
            "What is the weather in {c}?",
            "How is the weather in {c}?",
            "What's the weather like in {c}?",
            "Tell me the weather in {c}.",
            "Get the weather for {c}.",
        )
    )
    request = form.format(c=city)
    if len(parameters) == 2 and rng.random() < 0.6:
        arguments["unit"] = rng.choice(PARAMETERS[16].options)
        request = f"{request[:-1]} in {arguments['unit']}{request[-1]}"
    description = rng.choice(("Get the weather of a city", "Get the current weather in a city", "Current weather for a city"))
    return Offer(_tool("get_weather", description, parameters, 1, rng.random() < 0.7), request, Call("get_weather", arguments))


def lookup(rng: Random, split: Split) -> Offer:
    topic = draw(split, "lookup", lambda: word(rng) if rng.random() < 0.6 else f"{word(rng)} {word(rng)}")
    form = rng.choice(
        (
            "Look up {t}.",
            "Look up {t} with the tool.",
            "Use the lookup tool for the topic {t}.",
            "Please look up the topic {t}.",
            "Find out about {t}.",
        )
    )
    parameter = Parameter("topic", "string", "Topic to look up", "", made_up_word)
    return Offer(_tool("lookup", "Look up a topic", [parameter], 1), form.format(t=topic), Call("lookup", {"topic": topic}))


def _add(rng: Random, split: Split) -> Offer:
    a, b = draw(split, "add", lambda: (rng.randrange(1000), rng.randrange(1000)), str)
    parameters = [Parameter(n, "integer", f"{w} number", "", lambda rng: 0) for n, w in (("a", "First"), ("b", "Second"))]
    form = rng.choice(("Add {a} and {b}.", "Add {a} and {b} with the tool.", "Use the add tool for {a} and {b}."))
    return Offer(_tool("add", "Add two integers", parameters, 2), form.format(a=a, b=b), Call("add", {"a": a, "b": b}))


def _clock(rng: Random, split: Split) -> Offer:
    request = rng.choice(("What time is it?", "What is the time now?", "Tell me the time."))
    return Offer(_tool("get_time", "Get the current time", [], 0), request, Call("get_time", {}))


KNOWN: tuple[Callable[[Random, Split], Offer], ...] = (weather, weather, lookup, lookup, _add, _clock)


def offers(rng: Random, split: Split, number: int) -> list[Offer]:
    """`number` offers of different tools; in training a third are the well-known ones, in the held-out split none are."""
    chosen: list[Offer] = []
    while len(chosen) < number:
        taken = frozenset(offer.tool["name"] for offer in chosen)
        known = split == "train" and rng.random() < 0.35
        offer = rng.choice(KNOWN)(rng, split) if known else composed(rng, split, taken)
        if offer.tool["name"] not in taken:
            chosen.append(offer)
    return chosen


def call_thoughts(calls: tuple[Call, ...]) -> Thoughts:
    said = [f"{call.name} takes " + (_with(call) if call.arguments else "no arguments") + "." for call in calls]
    names = " and ".join(call.name for call in calls)
    return think(f"The user asks for something a tool can do: {names}.", said, f"I call {names}.", "The names and the types fit the tools.")


def _with(call: Call) -> str:
    return ", ".join(f"{key} {_spoken(value)}" for key, value in call.arguments.items())


def _result(rng: Random, call: Call) -> tuple[str, str]:
    """A tool result as JSON and one sentence that reports it."""
    if call.name == "get_weather":
        degrees, sky = rng.randrange(-5, 36), rng.choice(("sunny", "cloudy", "rainy", "windy"))
        city = call.arguments.get("city") or call.arguments["location"]
        record = {"city": city, "temperature": degrees, "condition": sky}
        return to_json(record), f"The weather in {city} is {sky} with {degrees} degrees."
    if call.name == "add":
        total = call.arguments["a"] + call.arguments["b"]
        return to_json({"sum": total}), f"The sum is {total}."
    if call.name == "get_time":
        now = _time(rng)
        return to_json({"time": now}), f"It is {now}."
    if call.name == "lookup":
        text = f"{call.arguments['topic']} is a {rng.choice(COLORS)} {rng.choice(OBJECTS)}"
        return to_json({"text": text}), f"{text}."
    keys = rng.sample(("status", "id", "total", "owner", "code"), rng.randrange(1, 4))
    values = {
        "status": rng.choice(("ok", "done", "failed")),
        "id": rng.randrange(1000),
        "total": rng.randrange(1000),
        "owner": rng.choice(NAMES),
        "code": made_up_word(rng),
    }
    record = {key: values[key] for key in keys}
    return to_json(record), f"The tool {call.name} says: " + ", ".join(f"{key} is {value}" for key, value in record.items()) + "."


def _lowered(request: str) -> str:
    return request if request.startswith("I ") else request[0].lower() + request[1:]


def _asked(rng: Random, split: Split, wanted: int, declared: int) -> tuple[str, tuple[Call, ...], tuple[Tool, ...]]:
    chosen = offers(rng, split, declared)
    tools = [offer.tool for offer in chosen]
    picked = chosen[:wanted]
    rng.shuffle(tools)
    request = picked[0].request
    if wanted > 1:
        rests = [_lowered(offer.request) for offer in picked[1:]]
        joint = rng.choice((" Also, ", " And ", " Then "))
        request = joint.join([request, *rests])
    return request, tuple(offer.call for offer in picked), tuple(tools)


def tool_call(rng: Random, split: Split) -> Exchange:
    """One request, one call; one to four tools declared. Half of the time the result comes back and is reported."""
    request, calls, tools = _asked(rng, split, 1, rng.choice((1, 1, 2, 3, 4)))
    return _exchange(rng, request, calls, tools)


def parallel_calls(rng: Random, split: Split) -> Exchange:
    """Two or three calls in one reply: of different tools, or of one tool with other arguments."""
    if rng.random() < 0.35:
        make = rng.choice((weather, lookup))
        first = make(rng, split)
        key = next(iter(first.call.arguments))
        values = [draw(split, "lookup", lambda: word(rng)) if make is lookup else rng.choice(CITIES) for _ in range(rng.choice((2, 2, 3)))]
        form = "Look up {v}." if make is lookup else "What is the weather in {v}?"
        calls = tuple(Call(first.call.name, {key: value}) for value in dict.fromkeys(values))
        return _exchange(rng, form.format(v=_spoken([call.arguments[key] for call in calls])), calls, (first.tool,))
    wanted = rng.choice((2, 2, 3))
    request, calls, tools = _asked(rng, split, wanted, wanted + rng.choice((0, 1)))
    return _exchange(rng, request, calls, tools)


def _exchange(rng: Random, request: str, calls: tuple[Call, ...], tools: tuple[Tool, ...]) -> Exchange:
    turns = [Turn("user", request), Turn("assistant", "", call_thoughts(calls), calls)]
    if rng.random() < 0.5:
        results = [_result(rng, call) for call in calls]
        turns += [Turn("tool", content) for content, _ in results]
        answer = " ".join(report for _, report in results)
        turns.append(Turn("assistant", answer, think("The tools have answered.", [f"The result is: {answer}"], "I report the result.")))
    return Exchange(tuple(turns), tools)


def no_call(rng: Random, split: Split) -> Exchange:
    """Tools are declared and the user wants none of them."""
    tools = tuple(offer.tool for offer in offers(rng, split, rng.choice((1, 2, 3))))
    wanted = draw(split, "word", lambda: word(rng))
    question, answer = rng.choice(
        (("Hello", "Hello! How can I help you?"), ("Thank you", "You are welcome!"), (f"Reply with exactly: {wanted}", wanted))
    )
    return Exchange(
        ask(question, answer, think(f"The user says: {question}", ["No tool is needed for this."], "I answer in a few words.")), tools
    )
