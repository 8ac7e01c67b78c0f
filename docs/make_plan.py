"""Draw `docs/plan.png`, with the very line that sisa.md shows.

Run ``python docs/make_plan.py`` after a change of the formulas or of `letheon.plot`.
"""

import os
import re
from pathlib import Path

import matplotlib as mpl

DOCS = Path(__file__).resolve().parent


def code() -> str:
    """Return the block of sisa.md that draws the picture."""
    text = (DOCS / "sisa.md").read_text("utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(block for block in blocks if '"plan.png"' in block)


def main() -> None:
    """Run it where the picture belongs."""
    mpl.use("Agg")
    os.chdir(DOCS)
    exec(code(), {})


if __name__ == "__main__":
    main()
