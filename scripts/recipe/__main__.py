"""`python -m recipe VERB`: what start.sh, stop.sh and scripts/prepare.sh hand over to."""

import sys


def _main() -> int:
    try:
        from recipe.cli import main

        return main(sys.argv[1:])
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(_main())
