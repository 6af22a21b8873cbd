"""Reports on the digits demo, after ``headrace run``; fails unless exactly the spoilt rows are dead letters.

    python examples/digits/report.py demo

The folder is that of ``prepare.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SHADES = " .:-=+*#%@"


def main(folder: Path) -> int:
    predictions = read(folder / "predictions.jsonl")
    dead_letters = read(folder / "predictions.dead-letters.jsonl")
    spoilt = {each["row"] for each in json.loads((folder / "spoilt.json").read_text())}
    held_out = [each for each in predictions if each["row"] >= (len(predictions) + len(dead_letters)) // 2]
    right = sum(each["prediction"] == each["label"] for each in held_out)

    print(f"A digit that the model has never seen, taken for a {held_out[0]['prediction']}:\n\n{drawn(held_out[0])}\n")
    print("row    true  predicted")
    for each in held_out[:5]:
        print(f"{each['row']:<6} {each['label']:<5} {each['prediction']}")
    print(f"\n{right} of the {len(held_out)} digits held out are right: {right / len(held_out):.1%}\n")
    for dead_letter in dead_letters:
        print(f"row {number_of(dead_letter):<5} {dead_letter['stage']}: {dead_letter['message']}")
    return judge(predicted=[each["row"] for each in predictions], dead=list(map(number_of, dead_letters)), bad=spoilt)


def number_of(dead_letter: dict) -> int:
    """The number of a row, which begins its line: a row whose fields do not fit their columns is there as its line."""
    row = dead_letter["row"]
    return int(row["line"].partition(",")[0]) if "line" in row else row["row"]


def read(path: Path) -> list[dict]:
    with path.open() as lines:
        return [json.loads(line) for line in lines]


def drawn(digit: dict) -> str:
    """The digit's 8 x 8 pixels, two characters each."""
    shades = [SHADES[int(digit[f"pixel_{i}"] * 9 / 16)] * 2 for i in range(64)]
    return "\n".join("    " + "".join(shades[start : start + 8]) for start in range(0, 64, 8))


def judge(predicted: list[int], dead: list[int], bad: set[int]) -> int:
    """0 if each row came out once, the spoilt ones as dead letters and all others with predictions; else 1."""
    rows = range(len(predicted) + len(dead))
    good = sorted(dead) == sorted(bad) and sorted(predicted + dead) == list(rows)
    if good:
        print(f"\nExactly the {len(bad)} spoilt rows are dead letters; the {len(predicted)} others are predicted.")
    else:
        print(f"\nWRONG: the dead letters are {sorted(dead)}, the spoilt rows {sorted(bad)}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
