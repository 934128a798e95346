"""A small seeded corpus for a tokenizer that nothing was trained on yet: plain sentences, code, JSON, calls and numbers.

Knows nothing of tokens or models. The same seed gives the same texts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

_NOUNS = """answer apple arrow autumn baker bank basket battery bed bell bicycle bird blanket boat book bottle bowl box branch bread bridge
brother bucket building button cable cake camera candle captain carpet castle cat chair cheese child city clock cloud coat coffee coin
colour computer concert corner cottage country cup curtain daughter desert desk dinner doctor dog door dream driver drum egg engine evening
family farm farmer father field finger fire fish floor flower forest fork friend fruit garden gate girl glass glove grandmother grass guest
guitar hammer hand harbour hat heart hill horse hospital hotel hour house idea island jacket journey judge key king kitchen kitten knife
ladder lake lamp language leaf lemon letter library light lion lunch machine magazine map market meadow meal message milk minute mirror
money month moon morning mother mountain mouse museum music name needle neighbour newspaper night nose number nurse ocean office onion
orange oven page painter paper parcel park parrot party path pencil people photograph piano picture pillow pilot pipe place plane planet
plate pocket poem pond potato present price prince problem question rabbit radio rain recipe record ribbon river road roof room rope rose
sailor salt sand sandwich saucer scarf school scissors secret shadow sheep shelf ship shirt shoe shop shoulder sister sky snow soldier
song soup spider spoon spring square stamp star station stone storm story street student sugar summer sun table tailor teacher telephone
temple theatre ticket tiger town toy train tree trousers umbrella uncle village violin voice wall watch water weather week wheel wind
window winter wolf woman wood word world writer year""".split()  # noqa: SIM905
_ADJECTIVES = """angry beautiful big bitter black blue brave bright broken brown busy calm careful cheap clean clever cold curious dark deep
different difficult dirty dry early easy empty expensive famous fast fine foreign fresh friendly full funny gentle golden good great green
grey happy hard heavy high hot huge hungry important kind large late lazy light little lonely long loud lucky modern narrow new nice noisy
old open patient pink pleasant polite poor pretty proud purple quick quiet red rich round sad safe sharp short silent silver simple slow
small smooth soft special strange strong sweet tall thick thin tired tiny ugly useful warm weak wet white wide wild wise wonderful wooden
wrong yellow young""".split()  # noqa: SIM905
_VERBS = """admired answered asked believed borrowed bought broke brought built called carried caught changed chose cleaned climbed closed
collected cooked counted covered crossed described discovered drew drove enjoyed explained filled finished fixed followed forgot found gave
heard helped hid invited joined kept knew learned left liked lost loved made measured mended missed moved needed noticed offered opened
ordered packed painted passed picked placed planted played prepared promised pulled pushed put read received remembered repaired returned
saved sent showed sold started stopped studied threw took touched turned understood used visited waited walked wanted warned washed watched
wrote""".split()  # noqa: SIM905
_LINKS = "and but because while although until before after when where so that then".split()  # noqa: SIM905
_OPENERS = """Yesterday Today Tomorrow Once Later Usually Perhaps However Therefore Finally Please Here There Now Still Often Suddenly
Meanwhile First Second Third Next Last Also Instead""".split()  # noqa: SIM905
_EFFORTS = ("Low", "High", "Max")


def corpus(seed: int, texts: int = 4000) -> Iterator[str]:
    """`texts` short texts, about 60 to 300 characters each."""
    dice = random.Random(seed)
    kinds = (_prose, _prose, _prose, _code, _json, _call, _numbers, _chat)
    for _ in range(texts):
        yield dice.choice(kinds)(dice)


def _phrase(dice: random.Random) -> str:
    if dice.random() < 0.2:
        return f"{dice.choice(('many', 'few', 'all', 'most', 'some', 'these', 'those'))} {dice.choice(_NOUNS)}s"
    article = dice.choice(("the", "a", "this", "that", "every", "our", "their", "his", "her", "my", "your", "some"))
    return f"{article} {dice.choice(_ADJECTIVES)} {dice.choice(_NOUNS)}"


def _sentence(dice: random.Random) -> str:
    clause = f"{_phrase(dice)} {dice.choice(_VERBS)} {_phrase(dice)}"
    if dice.random() < 0.5:
        clause += (
            f" {dice.choice(_LINKS)} {dice.choice(('it', 'she', 'he', 'they', 'we', 'I', 'you'))} {dice.choice(_VERBS)} {_phrase(dice)}"
        )
    if dice.random() < 0.3:
        clause += f" {dice.choice(('in', 'on', 'at', 'from', 'to', 'with', 'under', 'near', 'behind', 'into'))} {_phrase(dice)}"
    text = f"{dice.choice(_OPENERS)}, {clause}" if dice.random() < 0.4 else clause[0].upper() + clause[1:]
    return text + dice.choice((".", ".", ".", "!", "?"))


def _prose(dice: random.Random) -> str:
    return " ".join(_sentence(dice) for _ in range(dice.randint(2, 5)))


def _code(dice: random.Random) -> str:
    name, item, total = (dice.choice(_NOUNS) for _ in range(3))
    lines = [f"def {name}_{item}(values: list[int], limit: int = {dice.randint(0, 99)}) -> int:", f'    """Return the {total}."""']
    lines += [f"    {total} = 0", f"    for {item} in values:", f"        if {item} > limit:", f"            {total} += {item}"]
    lines += [f"    return {total}", "", "", f"print({name}_{item}([{', '.join(str(dice.randint(0, 999)) for _ in range(4))}]))"]
    return "\n".join(lines)


def _json(dice: random.Random) -> str:
    pick = (lambda: dice.randint(0, 9999), lambda: dice.random() < 0.5, lambda: None, lambda: dice.choice(_ADJECTIVES))
    value: dict[str, Any] = {dice.choice(_NOUNS): dice.choice(pick)() for _ in range(4)}
    value["items"] = [{"name": dice.choice(_NOUNS), "price": round(dice.random() * 100, 2)} for _ in range(2)]
    return json.dumps(value, indent=dice.choice((None, 2)))


def _call(dice: random.Random) -> str:
    name, description = f"get_{dice.choice(_NOUNS)}", _sentence(dice)
    kinds = ("string", "integer", "boolean", "number", "array")
    properties = {dice.choice(_NOUNS): {"type": dice.choice(kinds)} for _ in range(2)}
    tool = {"name": name, "description": description, "parameters": {"type": "object", "properties": properties}}
    return f"{json.dumps(tool)}\n{name} {dice.choice(_NOUNS)} {dice.randint(0, 500)}\n{json.dumps({'result': dice.choice(_NOUNS)})}"


def _numbers(dice: random.Random) -> str:
    first, second, start = dice.randint(0, 99), dice.randint(0, 99), dice.randint(0, 30)
    return f"{first} + {second} = {first + second}, count: {', '.join(str(start + i) for i in range(8))}"


def _chat(dice: random.Random) -> str:
    return f"Reasoning Effort: {dice.choice(_EFFORTS)}\nYou are a helpful assistant.\nWhat is {_phrase(dice)}?\n{_sentence(dice)}"
