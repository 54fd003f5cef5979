"""An opponent for PettingZoo's connect four that looks one move ahead: `--evaluation.opponent connect_four:look_ahead`."""

from __future__ import annotations

from typing import Any

import numpy as np

DIRECTIONS = (0, 1), (1, 0), (1, 1), (1, -1)  # rows down, columns to the right


def look_ahead(obs: dict[str, Any], rng: np.random.Generator) -> int:
    """Wins if it can, otherwise prevents that the other player wins with the next move, otherwise moves at random."""
    board = obs["observation"]  # [6, 7, 2]: one's own discs, and the other player's
    columns = np.flatnonzero(obs["action_mask"])
    for player in (0, 1):
        discs = {(int(row), int(column)) for row, column in np.argwhere(board[..., player])}
        if winning := [column for column in columns if wins(discs, _lands(board, column))]:
            return int(rng.choice(winning))
    return int(rng.choice(columns))


def wins(discs: set[tuple[int, int]], disc: tuple[int, int]) -> bool:
    """Whether one more disc makes four in a row of a player's `discs`, each a row and a column."""
    return any(1 + _run(discs, disc, down, right) + _run(discs, disc, -down, -right) >= 4 for down, right in DIRECTIONS)


def _run(discs: set[tuple[int, int]], disc: tuple[int, int], down: int, right: int) -> int:
    """Number of discs in a row from `disc` on, without it."""
    row, column, length = disc[0] + down, disc[1] + right, 0
    while (row, column) in discs:
        row, column, length = row + down, column + right, length + 1
    return length


def _lands(board: Any, column: int) -> tuple[int, int]:
    """Where a disc in `column` comes to lie."""
    return 5 - int(board[:, column].sum()), int(column)
