"""Writes the committed tables: `python -m tests.contract.pages`.

A new refusal shows in the diff of support.json; it needs a mathematical reason.
"""

import json
from pathlib import Path

from .cases import OBJECTIVES, STRATEGIES

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"


def support(strategies=STRATEGIES):
    """Of each strategy with each objective, whether it trains or why it is refused."""
    table = {}
    for name, strategy in strategies.items():
        reasons = {o: strategy.refuses(case.make("plain")) for o, case in OBJECTIVES.items()}
        table[name] = {o: f"refused: {reason}" if reason else "trains" for o, reason in reasons.items()}
    return table


def main():
    table = support()
    (HERE / "support.json").write_text(json.dumps(table, indent=2) + "\n")
    lines = [
        "# Which strategy trains which objective",
        "",
        "Made by `python -m tests.contract.pages`; `make contract` trains every cell that is not refused.",
        "",
        "| | " + " | ".join(OBJECTIVES) + " |",
        "|---" * (len(OBJECTIVES) + 1) + "|",
        *("| **" + name + "** | " + " | ".join(row.values()) + " |" for name, row in table.items()),
    ]
    (DOCS / "support.md").write_text("\n".join(lines) + "\n")
    if (DOCS / "vectorized.md").exists() is False:
        (DOCS / "vectorized.md").write_text("")
    from weft.testing import vectorization_table

    from .test_contract import vectorization_page

    (DOCS / "vectorized.md").write_text(vectorization_page(vectorization_table()))


if __name__ == "__main__":
    main()
