"""Generated files are what their registries say today. The only check that imports the product."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from checks.listing import ROOT
from patchwork import listing, page
from recipe.documents import DOCUMENTS


def findings(root: Path) -> Iterator[str]:
    pages = {name: render() for name, render in DOCUMENTS.items()}
    pages[page.PAGE] = page.page(listing.read(root / listing.FOLDER))
    for name, text in pages.items():
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text:
            yield f"{name} is not what its registry renders: ./start.sh documents, or ./start.sh patches refresh for the patches"


if __name__ == "__main__":
    found = list(findings(ROOT))
    print("\n".join(found))
    sys.exit(bool(found))
