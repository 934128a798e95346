"""What documents point at exists: links, and in code marks paths of this repository and routes of the API. The map in docs/structures.md
shows every folder.

Judges no sentence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from checks.listing import ROOT, files

MAP = "docs/structures.md"
# Folders of which the map shows every folder right below.
MAPPED = (".", "scripts", "scripts/recipe", "engine", "engine/lockstep", "tests")
DRAWN = re.compile(r"^( *)([\w.-]+)/  +\S", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
MARKED = re.compile(r"`([\w./-]+?)(?::+[\w.]+)?`")
ENDINGS = (".py", ".md", ".cu", ".cuh", ".json", ".yaml", ".toml", ".sh", ".lock", ".in", ".html", ".jinja")
# Paths that are made at run time, and heads of paths in other places.
MADE = re.compile(r"^(\.recipe|\.state/|[A-Z_]+/|scripts/local\.sh|objects/|/|\./)")
ROUTE = re.compile(r"`(?:GET |POST )?(/[a-z][\w/.-]*)`")
SERVED = re.compile(r'@router\.\w+\(\s*"(/[^"{]*)')
NO_ROUTES = ("/tmp",)
ADDED = re.compile(rb"^\+\+\+ b/(\S+)$", re.MULTILINE)


def places(root: Path) -> set[str]:
    """Every file and folder of the project, those that patches add too."""
    there = {str(path) for path in files(root)}
    for patch in (root / "patches").glob("*.patch"):
        there.update(f"engine/{name.decode()}".replace("engine/engine/", "engine/") for name in ADDED.findall(patch.read_bytes()))
    return there | {str(folder) for name in there for folder in PurePosixPath(name).parents}


def is_there(name: str, known: set[str]) -> bool:
    """`name` may begin at any folder, as in a package's own page, and leave the ending of a module out."""
    tails = (name, f"{name}.py")
    return any(place in tails or place.endswith(tuple(f"/{tail}" for tail in tails)) for place in known)


def is_path(word: str) -> bool:
    return not MADE.match(word) and bool(re.search(r"\w/\w", word) or word.endswith(ENDINGS)) and word not in ENDINGS


def routes(root: Path) -> set[str]:
    """Of every endpoint, without what stands for a value at its end."""
    server = (root / "engine/lockstep/server").glob("*.py")
    served = {route.rstrip("/") for place in server for route in SERVED.findall(place.read_text(encoding="utf-8"))}
    return served | {"/openapi.json"}


def anchors(text: str) -> set[str]:
    """What a link may name behind `#`: headings in lower case, blanks as dashes, other marks left out."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def drawn(text: str) -> Iterator[str]:
    """Folders of the map: in its first block, two blanks a level, `name/` and what belongs there."""
    above: list[str] = []
    for found in DRAWN.finditer(text.partition("```\n")[2].partition("```")[0]):
        above[len(found[1]) // 2 :] = [found[2]]
        yield "/".join(above)


def mapped(known: set[str]) -> Iterator[str]:
    for name in known:
        parent, is_folder = str(PurePosixPath(name).parent), any(other.startswith(f"{name}/") for other in known)
        if is_folder and parent in MAPPED and not name.startswith("."):
            yield name


def findings(root: Path) -> Iterator[str]:
    known, served = places(root), routes(root)
    for page in (path for path in files(root) if path.suffix == ".md"):
        text = (root / page).read_text(encoding="utf-8")
        for link, part in LINK.findall(text):
            place = root / page.parent / link if link else root / page
            if "://" not in link and not (place.exists() and (not part or part in anchors(place.read_text(encoding="utf-8")))):
                yield f"{page}: the link {link}{'#' * bool(part)}{part} leads nowhere"
        for word in MARKED.findall(text):
            if is_path(word) and not is_there(word.rstrip("/"), known):
                yield f"{page}: {word} is not there"
        yield from (f"{page}: there is no route {route}" for route in ROUTE.findall(text) if route not in served and route not in NO_ROUTES)
    shown, there = set(drawn((root / MAP).read_text(encoding="utf-8"))), set(mapped(known))
    yield from (f"{MAP}: the map has no line for {name}/" for name in sorted(there - shown))
    yield from (f"{MAP}: the map has a line for {name}/, which is not there" for name in sorted(shown - there))


if __name__ == "__main__":
    found = list(findings(ROOT))
    print("\n".join(found))
    sys.exit(bool(found))
