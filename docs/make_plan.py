"""Draw `docs/plan.png` with the code that sisa.md shows.

Run ``python docs/make_plan.py`` after changing the formulas or `letheon.plot`.
"""

import os
import re
from pathlib import Path

import matplotlib as mpl

DOCS = Path(__file__).resolve().parent


def code() -> str:
    """Return the code block of sisa.md that draws the plot."""
    text = (DOCS / "sisa.md").read_text("utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(block for block in blocks if '"plan.png"' in block)


def main() -> None:
    """Draw the plot in the docs folder."""
    mpl.use("Agg")
    os.chdir(DOCS)
    exec(code(), {})


if __name__ == "__main__":
    main()
