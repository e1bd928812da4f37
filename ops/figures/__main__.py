"""`python -m penstock.ops.figures`: write the tables of kept runs into the repository's Markdown files.

`--check` changes nothing and exits with 1 if a table is not current.
"""

import argparse
import sys
from collections.abc import Sequence

from penstock.ops.figures.tables import ROOT, stale_files


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; with --check 1 if a table is not current."""
    parser = argparse.ArgumentParser(prog="python -m penstock.ops.figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a table is not current")
    chosen = parser.parse_args(arguments)
    stale = stale_files()
    for path, text in stale.items():
        print(f"{'not current' if chosen.check else 'written'}: {path.relative_to(ROOT)}")
        if not chosen.check:
            path.write_text(text, encoding="utf-8")
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
