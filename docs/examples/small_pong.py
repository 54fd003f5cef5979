"""A small Pong for two who move at once: `--environment.id small_pong:SmallPong --evaluation.opponent small_pong:follow`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

REACH = 0.2  # half of a paddle
SPEED = 0.08  # of a paddle, and of the ball at the serve, along the court, per move
FASTER = 1.1  # by which each hit makes the ball faster
SLOPE = 1.75  # of the ball's way after a hit with a paddle's end
MOVES = 400  # of each player, after which the rally is a draw


class SmallPong:
    """A rally on a court of 2 by 2; who misses the ball loses 1 to the other player.

    Both choose from the same picture: the ball flies on once the second player has moved, who is not shown the first one's
    move before.
    """

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.agent_selection = "left"  # whose turn it is
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        """Heights of one's own and the other paddle, the ball's place and velocity; one's own paddle is at −1."""
        return Box(-np.inf, np.inf, (6,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        """Down, stay, up."""
        return Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Serves from the middle, to either side."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._heights = dict.fromkeys(self.possible_agents, 0.0)
        self._ball, self._moves = np.zeros(2), 0
        self._velocity = SPEED * np.array([self._random.choice([-1, 1]), self._random.uniform(-1, 1)])
        self.agent_selection = "left"
        self._note(0.0)

    def observe(self, agent: str) -> Any:
        """The court from the side of an agent."""
        other, side = ("right", 1) if agent == "left" else ("left", -1)
        own_x = np.array([side, 1])
        ball = np.concatenate([self._ball * own_x, self._velocity * own_x / SPEED])
        return np.array([self._heights[agent], self._heights[other], *ball], np.float32)

    def step(self, action: int) -> None:
        """A move of the agent whose turn it is; after the second one's the ball flies on."""
        agent = self.agent_selection
        height = self._heights[agent] + SPEED * (int(action) - 1)
        self._heights[agent] = float(np.clip(height, REACH - 1, 1 - REACH))
        self.agent_selection = "right" if agent == "left" else "left"
        self._note(self._fly() if agent == "right" else 0.0)

    def _fly(self) -> float:
        """Moves the ball; returns what the left player gains."""
        self._moves += 1
        self._ball += self._velocity
        if abs(self._ball[1]) > 1:  # a wall
            self._ball[1] = np.sign(self._ball[1]) * 2 - self._ball[1]
            self._velocity[1] *= -1
        if abs(self._ball[0]) < 1:
            return 0.0
        side = np.sign(self._ball[0])
        offset = self._ball[1] - self._heights["left" if side < 0 else "right"]
        if abs(offset) > REACH:
            return float(side)
        speed = FASTER * abs(self._velocity[0])
        self._ball[0], self._velocity = side, speed * np.array([-side, SLOPE * offset / REACH])
        return 0.0

    def _note(self, gain: float) -> None:
        """Rewards of the newest step alone, and whether the rally is over, for each agent."""
        self.rewards = {"left": gain, "right": -gain}
        self.terminations = dict.fromkeys(self.possible_agents, gain != 0)
        self.truncations = dict.fromkeys(self.possible_agents, gain == 0 and self._moves == MOVES)


def follow(obs: Any, rng: np.random.Generator) -> int:
    """Keeps its paddle at the height of the ball."""
    distance = obs[3] - obs[0]
    return 1 if abs(distance) < SPEED / 2 else 1 + int(np.sign(distance))
