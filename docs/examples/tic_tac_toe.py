"""A game of one's own for two players who take turns."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

LINES = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]


class TicTacToe:
    """Noughts and crosses; three in a row win and pay 1, and the other player −1."""

    possible_agents = ("crosses", "noughts")

    def __init__(self) -> None:
        self.agent_selection = "crosses"  # whose turn it is

    def observation_space(self, agent: str) -> Dict:
        """Nine squares with a mark of one's own, nine with a mark of the other player, and which squares are free."""
        return Dict({"observation": Box(0, 1, (18,), np.int8), "action_mask": Box(0, 1, (9,), np.int8)})

    def action_space(self, agent: str) -> Discrete:
        """The square to mark."""
        return Discrete(9)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """An empty board; crosses begin."""
        self.agent_selection = "crosses"
        self._marks = {agent: np.zeros(9, np.int8) for agent in self.possible_agents}
        self._note(0.0, over=False)

    def observe(self, agent: str) -> dict[str, Any]:
        """What an agent sees, in the middle of the game and at its end."""
        own, other = self._marks[agent], self._marks[self._other(agent)]
        return {"observation": np.concatenate([own, other]), "action_mask": 1 - own - other}

    def step(self, action: int) -> None:
        """A move of the agent whose turn it is."""
        agent, marks = self.agent_selection, self._marks[self.agent_selection]
        marks[action] = 1
        wins = any(marks[line].all() for line in LINES)
        self._note(float(wins), over=wins or bool(sum(self._marks.values()).all()))
        self.agent_selection = self._other(agent)

    def _other(self, agent: str) -> str:
        return self.possible_agents[agent == "crosses"]

    def _note(self, reward: float, *, over: bool) -> None:
        """Rewards of the newest step alone, and whether the game is over, for each agent."""
        self.rewards = {self.agent_selection: reward, self._other(self.agent_selection): -reward}
        self.terminations = dict.fromkeys(self.possible_agents, over)
        self.truncations = dict.fromkeys(self.possible_agents, False)
