"""Grammar of `.env`: bytes in, literal values and remarks out. Executes nothing, expands nothing, knows no setting by name.

One `KEY=value` a line, `export ` allowed before it. A value in matching quotes is taken as it stands between them; an unquoted one ends
at a blank followed by `#`. There are no escapes, no `$`, no continuation lines. The first of two equal keys counts.
"""

import re
from dataclasses import dataclass, field

KEY_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
QUOTED = re.compile(r"""(?P<quote>['"])(?P<text>(?:(?!(?P=quote)).)*)(?P=quote)[ \t]*(?:#.*)?""", re.DOTALL)
COMMENT = re.compile(r"[ \t]+#.*", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """A value as taken, and its line number, counted from 1."""

    value: str
    line: int


@dataclass(frozen=True)
class Remark:
    """Something a reader of the file should hear about. `key` is empty where the line has none; texts never hold a value."""

    line: int
    key: str
    text: str
    is_harmless: bool = False


@dataclass
class Parsed:
    entries: dict[str, Entry] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)


def parse(content: bytes) -> Parsed:
    """Every line is either taken, or ignored with a remark. Never raises."""
    parsed = Parsed()
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        _take_line(parsed, number, raw.removesuffix(b"\r"))
    return parsed


def _take_line(parsed: Parsed, number: int, raw: bytes) -> None:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError:
        parsed.remarks.append(Remark(number, "", "is not UTF-8 text: ignored"))
        return
    if not line.strip() or line.lstrip().startswith("#"):
        return
    match = KEY_LINE.fullmatch(line)
    if match is None:
        parsed.remarks.append(Remark(number, "", _why_ignored(line)))
        return
    key, rest = match[1], match[2]
    if any(ord(character) < 32 and character != "\t" for character in rest):
        parsed.remarks.append(Remark(number, key, "holds a control character: ignored"))
        return
    if key in parsed.entries:
        parsed.remarks.append(Remark(number, key, f"is set before, in line {parsed.entries[key].line}, which counts"))
        return
    parsed.entries[key] = Entry(_value(parsed, number, key, rest), number)


def _why_ignored(line: str) -> str:
    if re.match(r"\s*(export\s+)?[A-Za-z_][A-Za-z0-9_]*\s*[=:]", line):
        return "is not KEY=value (no blanks around '=', no ':'): ignored"
    return "is not KEY=value: ignored"


def _value(parsed: Parsed, number: int, key: str, rest: str) -> str:
    text = rest.lstrip(" \t")
    if text != rest and text:
        parsed.remarks.append(Remark(number, key, "has a blank after '=': dropped"))
    if text[:1] in ("'", '"'):
        quoted = QUOTED.fullmatch(text)
        if quoted is not None:
            return quoted["text"]
        parsed.remarks.append(Remark(number, key, "has an unmatched quote: taken with its quotes"))
        return text.rstrip(" \t")
    # `KEY=#x` is a value; only a blank before '#' starts a comment.
    return "" if text.startswith("#") and text != rest else _cut(parsed, number, key, text)


def _cut(parsed: Parsed, number: int, key: str, text: str) -> str:
    value = COMMENT.sub("", text, count=1).rstrip(" \t")
    if value != text.rstrip(" \t"):
        parsed.remarks.append(Remark(number, key, "ends at ' #', the rest is a comment; quote the value to keep it", is_harmless=True))
    return value
