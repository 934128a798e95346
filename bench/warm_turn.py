"""What the host does for the next turn of a long conversation, part by part: CPU time of front and engine process, without the model.

`PYTHONPATH=engine python bench/warm_turn.py` writes bench/results/warm_turn.json and prints it. The conversation is an agent's: tools, and
turns of thought, call and result. Each part runs several times after one that fills what is remembered; the least time counts, since
whatever else the machine does only adds. Lengths are in tokens of the embedded checkpoint's tokenizer.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from lockstep.channel.frames import HEADER_BYTES, decode, encode
from lockstep.core.messages import Submit
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.copy import CopyIndex
from lockstep.sched.trace import Trace
from lockstep.server.body import read_object
from lockstep.server.generation import PromptIds
from lockstep.server.schema import ChatBody
from lockstep.text.history import normalise
from lockstep.text.template import ChatTemplate
from lockstep.text.thinking import Thinking
from lockstep.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[1]
WORDS = "river stone garden window paper def return self import value for in not {} () [] == < > \n json letter"
TOOLS = 15
THINKING = Thinking(True, "high")


def words(draws: Random, count: int) -> str:
    return " ".join(draws.choices(WORDS.split(" "), k=count))


def conversation(turns: int, words_a_result: int) -> dict[str, Any]:
    """A request as an agent sends it after `turns` calls of tools."""
    draws = Random(turns)
    messages: list[dict[str, Any]] = [{"role": "system", "content": words(draws, 500)}, {"role": "user", "content": words(draws, 200)}]
    for at in range(turns):
        call = {
            "id": f"c{at}",
            "type": "function",
            "function": {"name": "read", "arguments": json.dumps({"path": f"/a/{at}.py", "lines": at})},
        }
        spoken = {"content": words(draws, 40), "reasoning_content": words(draws, 60), "tool_calls": [call]}
        messages += [{"role": "assistant"} | spoken, {"role": "tool", "tool_call_id": f"c{at}", "content": words(draws, words_a_result)}]
        if at % 5 == 4:
            messages.append({"role": "user", "content": words(draws, 60)})
    shape = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}, "required": ["path"]}
    tools = [
        {"type": "function", "function": {"name": f"tool{at}", "description": words(draws, 40), "parameters": shape}} for at in range(TOOLS)
    ]
    return {"messages": messages, "tools": tools}


def milliseconds(work: Callable[[], Any], times: int) -> float:
    """Least CPU time of one call."""
    spent = []
    for _ in range(times):
        began = process_time()
        work()
        spent.append(process_time() - began)
    return round(min(spent) * 1e3, 2)


def parts(asked: dict[str, Any], tokenizer: Tokenizer, times: int) -> dict[str, Any]:
    """Milliseconds by part of one warm turn."""
    data = json.dumps(asked).encode()
    body = read_object(data, ChatBody)
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    template = ChatTemplate.load(ROOT / "embedded", tokenizer)

    def prompt(owner: str = "warm") -> tuple[int, ...]:
        return template.prompt(messages, THINKING, tools=body.offered_tools, owner=owner).ids

    first_ms = milliseconds(prompt, 1)
    ids = prompt()
    shaped = [template._marked(message) for message in normalise(messages)]
    names = {
        "add_generation_prompt": True,
        "enable_thinking": True,
        "reasoning_effort": "high",
        "tools": template._marked(body.offered_tools),
    }
    request = EngineRequest("r", ids, Sampling(), 10)
    frame = encode(Submit(request))

    def copies() -> None:
        index = CopyIndex(len(ids))
        index.extend(ids)
        index.extend(ids[:1])
        index.propose(15)

    found = {
        "reading the body": milliseconds(lambda: read_object(data, ChatBody), times),
        "rendering and tokenising": milliseconds(prompt, times),
        "of which the template": milliseconds(lambda: template._template.render(messages=shaped, **names), times),
        "seed of the prompt": milliseconds(lambda: PromptIds(ids, "messages", "").digest, times),
        "to the engine and read there": milliseconds(lambda: decode(encode(Submit(request))[HEADER_BYTES:]), times),
        "names of prefixes": milliseconds(lambda: Trace(request), times),
        "places of copies": milliseconds(copies, times),
    }
    total = sum(value for name, value in found.items() if not name.startswith("of which"))
    sizes = {"tokens": len(ids), "messages": len(messages), "body_kib": len(data) >> 10, "frame_kib": len(frame) >> 10}
    return sizes | {"ms": found | {"all": round(total, 2)}, "first_rendering_and_tokenising_ms": first_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "warm_turn.json")
    told = parser.parse_args()
    tokenizer = Tokenizer.load(ROOT / "embedded")
    shapes = ((8, 400), (95, 1100), (190, 450), (330, 1200), (560, 600))
    figures = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "turns": [parts(conversation(*shape), tokenizer, told.times) for shape in shapes],
    }
    told.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    json.dump(figures, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
