"""The one conversation of the system: a peer sends a `Message` to the learner's inbox and gets a `Reply`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from apex_acer.protocol.unroll import Unroll

Role = Literal["actor", "evaluator", "manager", "learner"]
ROLES: tuple[Role, ...] = get_args(Role)
Row = dict[str, float]
"""Metric names (`metrics.py`) and their values."""


@dataclass(frozen=True)
class Peer:
    """Who speaks: a role, its index, and how many times it was started before."""

    role: Role
    index: int
    incarnation: int

    @property
    def name(self) -> str:
        """As in the folders of TensorBoard: `actor_0`, `evaluator`."""
        return f"actor_{self.index}" if self.role == "actor" else self.role


@dataclass(frozen=True)
class Message:
    """What a peer says. `sequence` counts from 0 within an incarnation, without gaps."""

    run_id: str
    peer: Peer
    sequence: int
    weights_version: int = -1
    """Version the peer acts with; −1: none yet."""
    wants_weights: bool = False
    rows: list[Row] = field(default_factory=list)
    unroll: Unroll | None = None
    acting_s: float = 0.0
    """Seconds since an actor's first environment step, on its own clock."""
    stop: str = ""
    """From the manager only: end the run, for this reason."""
    incarnations: dict[str, int] = field(default_factory=dict)
    """From the manager only: peers by name that were started, and their current incarnation."""


@dataclass(frozen=True)
class Reply:
    """What the learner answers."""

    sequence: int
    stop: bool = False
    weights_version: int = -1
    weights: bytes | None = None
    """A safetensors file's bytes, where newer than the peer's and asked for."""
    env_steps: int = 0
    """With `weights`: environment steps that the run has made."""
    refused: str = ""
    """Why the message was not taken; empty where it was."""
    status: dict[str, Any] = field(default_factory=dict)
    """To the manager only: live rows by process name."""


class Link(Protocol):
    """A peer's side of the conversation; replies come in the order of the messages."""

    def send(self, message: Message) -> None:
        """Hands `message` over without waiting."""

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply, or None when there is none within `timeout_s` seconds."""
