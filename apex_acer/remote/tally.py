"""Tallies of clients by name, for rows of metrics: few, however many names and addresses clients have."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Iterable
from statistics import fmean

from apex_acer.protocol.messages import Row

NAMES, ADDRESSES = 16, 8  # with a tally each; who comes later is in one for all others
OTHERS = "@others"
RETURNS = 10_000  # of the newest episodes in a row


class Tally:
    """Counts of the clients of one name. The server's thread counts; another one takes rows."""

    def __init__(self) -> None:
        self.steps = self.episodes = 0
        self.refused = 0
        """How often clients were refused."""
        self.returns: deque[float] = deque(maxlen=RETURNS)
        """Returns of the episodes that ended since the newest row."""
        self._steps_in_rows = 0
        self._news = 0, 0.0, 0  # clients, rate and refusals in the newest row

    def end_episode(self, episode_return: float) -> None:
        self.episodes += 1
        self.returns.append(episode_return)

    def row(self, clients: int, seconds: float) -> Row:
        """Metrics since the row of `seconds` ago; empty if no client is here and nothing is new."""
        steps, refused = self.steps, self.refused
        rate = (steps - self._steps_in_rows) / max(seconds, 1e-9)
        before, self._news, self._steps_in_rows = self._news, (clients, rate, refused), steps
        if not clients and self._news == before:
            return {}
        row: Row = {"refused_clients": refused}
        if clients or steps:
            row |= {"clients": clients, "env_steps_per_s": rate, "episodes": self.episodes}
        returns, self.returns = self.returns, deque(maxlen=RETURNS)
        if returns:
            row |= {"episode_return": fmean(returns), "episode_return_max": max(returns)}
        return row


class Tallies:
    """The tallies of the first names that clients give, and of the first addresses at which nameless ones are refused."""

    def __init__(self) -> None:
        self._named: dict[str, Tally] = {}
        self._at_address: dict[str, Tally] = {}
        self._others = Tally()
        self._row_at = time.monotonic()

    def of(self, name: str) -> Tally:
        """The tally of the clients with a `name`; one that has no rows if it is empty."""
        return self._find(self._named, NAMES, re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)) if name else Tally()

    def refuse(self, name: str, address: str) -> None:
        """Counts a refusal for the client's `name` or, if it is empty, for its `address`."""
        label = "@" + re.sub(r"[^\w.]", "-", address, flags=re.ASCII)  # no name has an @
        (self.of(name) if name else self._find(self._at_address, ADDRESSES, label)).refused += 1

    @property
    def refused(self) -> int:
        """How often clients were refused."""
        return sum(tally.refused for _, tally in self._labelled())

    def rows(self, present: Iterable[tuple[Tally, int]]) -> dict[str, Row]:
        """A row for each tally with news, by a name for files; `present` has tallies and how many clients are there."""
        now, clients = time.monotonic(), Counter[Tally]()
        for tally, num in present:
            clients[tally] += num
        seconds, self._row_at = now - self._row_at, now
        rows = {label: tally.row(clients[tally], seconds) for label, tally in self._labelled()}
        return {label: row for label, row in rows.items() if row}

    def refusals(self) -> str:
        """How often each client was refused, in one line; empty if none was."""
        return ", ".join(f"{label} {tally.refused:,}" for label, tally in self._labelled() if tally.refused)

    def _labelled(self) -> list[tuple[str, Tally]]:
        return [*self._named.items(), *self._at_address.items(), (OTHERS, self._others)]

    def _find(self, tallies: dict[str, Tally], most: int, label: str) -> Tally:
        if label not in tallies and len(tallies) >= most:
            return self._others
        return tallies.setdefault(label, Tally())
