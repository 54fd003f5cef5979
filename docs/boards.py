"""Draws a game of connect four between two policies: `python -m docs.boards WEIGHTS OTHER OUT.svg [MOVES]`.

The first MOVES (6) are sampled, so that each pair of files has a game of its own; then both take their best moves.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pettingzoo.classic.connect_four.connect_four import raw_env

from apex_acer import load_policy
from docs.examples.connect_four import wins

ROWS, COLUMNS, SIZE = 6, 7, 44  # pixels of a square
COLOURS = "#d9483b", "#2b5d8a"
Disc = tuple[int, int]


def play(weights: tuple[str, str], sampled: int) -> list[int]:
    """The columns of the moves of a game whose first moves are `sampled`; the first of the weights files begins."""
    env, moves = raw_env(), list[int]()
    policies = [load_policy(path, import_modules=True) for path in weights]
    env.reset()
    while not any(env.terminations.values()):
        obs = env.observe(env.agent_selection)
        moves.append(int(policies[len(moves) % 2].act(obs, greedy=len(moves) >= sampled)))
        env.step(moves[-1])
    return moves


def picture(moves: list[int]) -> str:
    """The board at the end of the game as SVG: a number on each disc says when it was dropped; the row that won has rims."""
    discs: list[Disc] = []
    for column in moves:
        discs.append((ROWS - 1 - sum(disc[1] == column for disc in discs), column))
    rims = _row_that_won(discs)
    width, height = COLUMNS * SIZE, ROWS * SIZE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="15" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" rx="6" fill="#e8e4d8"/>',
    ]
    for row, column in ((row, column) for row in range(ROWS) for column in range(COLUMNS)):
        number = discs.index((row, column)) + 1 if (row, column) in discs else 0
        x, y = (column + 0.5) * SIZE, (row + 0.5) * SIZE
        fill = COLOURS[(number - 1) % 2] if number else "#ffffff"
        rim = ' stroke="#111111" stroke-width="4"' if (row, column) in rims else ""
        lines.append(f'<circle cx="{x:g}" cy="{y:g}" r="{0.42 * SIZE:g}" fill="{fill}"{rim}/>')
        lines += [f'<text x="{x:g}" y="{y + 5:g}" fill="#ffffff">{number}</text>'] if number else []
    return "\n".join([*lines, "</svg>", ""])


def _row_that_won(discs: list[Disc]) -> set[Disc]:
    """The discs of the player of the last move without which that move would not have won."""
    own, last = set(discs[-1::-2]), discs[-1]
    if not wins(own - {last}, last):
        return set()
    return {last} | {disc for disc in own - {last} if not wins(own - {last, disc}, last)}


if __name__ == "__main__":
    first, second, out, *rest = sys.argv[1:]
    Path(out).write_text(picture(play((first, second), int(rest[0]) if rest else 6)), encoding="utf-8")
