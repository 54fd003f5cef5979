"""What an agent learns with: the learner, its optimizer, network and replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from apex_acer.config.checks import at_least, device_name, fraction, importable, positive, require, thread_count, typed


@dataclass(frozen=True)
class LearnerConfig:
    """The process that owns the device, the replay memory and the optimizer."""

    count: int = 1
    """Learners, which share every update: each has an equal part of the actors, of replay and of each batch."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`, or `auto`: cuda where there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the torso's arithmetic; `auto`: bfloat16 for convolutions where the device has instructions for it."""
    batch_size: int = 16
    """Samples per update: segments (one environment's unroll each); single steps where the algorithm learns from those."""
    threads: int = 0
    """Threads of the learner's network on the CPU; 0: chosen from the cores present."""
    max_skipped_updates: int = 100
    """Non-finite updates in a row, all skipped, after which the run ends."""
    callback: str = ""
    """`module:function`, called in the learner's process at each of its rows with the environment steps so far, the row and
    the network, to look at but not to change."""

    def __post_init__(self) -> None:
        typed("learner", self)
        device_name("learner.device", self.device)
        if self.callback:
            importable("learner.callback", self.callback, "module:function")
        counts = {"count": self.count, "batch_size": self.batch_size, "max_skipped_updates": self.max_skipped_updates}
        at_least(1, "learner", counts)
        thread_count("learner.threads", self.threads)


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become steps."""

    name: str = "rmsprop"
    """`rmsprop` (eps outside the root, as torch has it), `adam`, or `module:function`: your own (docs/own-network.md)."""
    learning_rate: float = 7e-4
    """Step size at the start."""
    schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls to `final_fraction` of it until the run, or `schedule_steps`, is over."""
    final_fraction: float = 0.0
    """Share of `learning_rate` that a linear schedule ends at."""
    eps: float = 1e-5
    """Added to the root of the mean square."""
    decay: float = 0.99
    """Decay of the mean square (RMSProp's alpha, Adam's second beta)."""
    max_grad_norm: float = 40.0
    """Gradients are scaled to at most this global norm before the step."""

    def __post_init__(self) -> None:
        typed("optimizer", self)
        importable("optimizer.name", self.name, "module:function", "rmsprop", "adam")
        values = {"learning_rate": self.learning_rate, "eps": self.eps, "max_grad_norm": self.max_grad_norm}
        positive("optimizer", values)
        fraction("optimizer", {"decay": self.decay}, one=False)
        fraction("optimizer", {"final_fraction": self.final_fraction})


@dataclass(frozen=True)
class NetworkConfig:
    """The shared torso; the algorithm builds its heads on it."""

    torso: str = "auto"
    """`conv` or `mlp`; `auto`: conv for images, mlp for vectors and for images too small for it; or `module:class`: your
    own (docs/own-network.md)."""
    convolutions: Literal["nature", "a3c"] = "nature"
    """Of a conv torso: three layers (Mnih et al. 2015), or two at a third of the cost (Mnih et al. 2016)."""
    normalise: bool = False
    """Centre and scale observations by running statistics, which the learner keeps and the weights carry."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the fully connected layers (after the convolutions, where there are any)."""
    lstm: int = 0
    """Units of an LSTM between the fully connected layers and the heads; 0: none."""
    activation: Literal["relu", "tanh"] = "relu"
    """Between fully connected layers; convolutions always use relu."""

    def __post_init__(self) -> None:
        typed("network", self)
        importable("network.torso", self.torso, "module:class", "auto", "mlp", "conv")
        at_least(0, "network", {"lstm": self.lstm})
        ok = len(self.hidden_sizes) > 0 and min(self.hidden_sizes) >= 1
        require(ok, "network.hidden_sizes", self.hidden_sizes, "give one width or more, each 1 or more")


@dataclass(frozen=True)
class ReplayConfig:
    """The replay memory, in the learner."""

    capacity: int = 100_000
    """Environment steps kept; the oldest segment is overwritten first."""
    start: int = 1_000
    """Replayed updates begin once this many environment steps are held, or the memory is full."""
    sampling: Literal["uniform", "prioritized"] = "uniform"
    """How replayed samples are drawn: all alike, or in proportion to their last errors (Schaul et al. 2016)."""
    priority_exponent: float = 0.6
    """Power that errors are raised to for prioritized sampling (alpha); 0 is uniform."""
    importance_exponent: float = 0.4
    """Power of the weights that correct the loss for prioritized sampling (beta), at the start."""
    importance_exponent_final: float = 0.4
    """The same at the end of the run, or at `schedule_steps`; it moves there linearly."""
    device: Literal["learner", "cpu"] = "learner"
    """Where segments are held: with the learner, which on a GPU then copies nothing, or in this machine's memory."""

    def __post_init__(self) -> None:
        typed("replay", self)
        at_least(1, "replay", {"capacity": self.capacity})
        at_least(0, "replay", {"start": self.start})
        names = ("priority_exponent", "importance_exponent", "importance_exponent_final")
        fraction("replay", {name: getattr(self, name) for name in names})
        require(self.start <= self.capacity, "replay.start", self.start, f"at most replay.capacity ({self.capacity})")
