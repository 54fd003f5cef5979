"""The settings of the learner, the optimizer, the network and replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from apex_acer.config.checks import at_least, device_name, fraction, importable, positive, thread_count, typed
from apex_acer.system.errors import require


@dataclass(frozen=True)
class LearnerConfig:
    """The process that owns the device, the replay memory and the optimizer."""

    count: int = 1
    """Number of learners, which make each update together: each has an equal part of the actors, replay and batch."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:N`, or `auto`: cuda if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the arithmetic of large layers; `auto`: bfloat16 for convolutions and for fully connected layers of 256
    units or more, if the device has instructions for it and the torso computes the same in it."""
    batch_size: int = 16
    """Samples per update: sequences (one environment's part of an unroll each), or single steps if the algorithm learns
    from those."""
    threads: int = 0
    """Threads of the learner's network on the CPU; 0: chosen by the number of cores."""
    max_skipped_updates: int = 100
    """The run ends after this many updates in a row that were not finite; such updates are skipped."""
    callback: str = ""
    """`module:function`, called in the learner's process at each of its rows with the environment steps so far, the row and
    the network, which it must not change."""

    def __post_init__(self) -> None:
        typed("learner", self)
        device_name("learner.device", self.device)
        if self.callback:
            importable("learner.callback", self.callback, "module:function")
        at_least(1, "learner", self, "count", "batch_size", "max_skipped_updates")
        thread_count("learner.threads", self.threads)


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate."""

    name: str = "rmsprop"
    """`rmsprop` (with eps outside the root, as in torch), `adam`, or `module:function`: your own (docs/own-network.md)."""
    learning_rate: float = 7e-4
    """Learning rate at the start."""
    schedule: Literal["constant", "linear"] = "constant"
    """With `linear` the learning rate falls to `final_fraction` of it by the end of the run, or by `schedule_steps`."""
    final_fraction: float = 0.0
    """Share of `learning_rate` at the end of a linear schedule."""
    eps: float = 1e-5
    """Added to the root of the mean square gradient."""
    decay: float = 0.99
    """Decay of the mean square gradient (RMSProp's alpha, Adam's second beta)."""
    max_grad_norm: float = 40.0
    """Gradients are scaled to at most this global norm before the step."""

    def __post_init__(self) -> None:
        typed("optimizer", self)
        importable("optimizer.name", self.name, "module:function", "rmsprop", "adam")
        positive("optimizer", self, "learning_rate", "eps", "max_grad_norm")
        fraction("optimizer", self, "decay", one=False)
        fraction("optimizer", self, "final_fraction")


@dataclass(frozen=True)
class NetworkConfig:
    """The torso, on which the algorithm builds its heads."""

    torso: str = "auto"
    """`conv` or `mlp`; `auto`: conv for images, mlp for vectors and for images that are too small; or `module:class`: your
    own (docs/own-network.md)."""
    convolutions: Literal["nature", "a3c"] = "nature"
    """Layers of a conv torso: three (Mnih et al. 2015), or two at a third of the cost (Mnih et al. 2016)."""
    normalise: bool = False
    """Centre and scale observations by running statistics, which the learner updates and weights files contain."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the fully connected layers (after the convolutions, if there are any)."""
    lstm: int = 0
    """Units of an LSTM between the fully connected layers and the heads; 0: none."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of the fully connected layers; convolutions always use relu."""

    def __post_init__(self) -> None:
        typed("network", self)
        importable("network.torso", self.torso, "module:class", "auto", "mlp", "conv")
        at_least(0, "network", self, "lstm")
        ok = len(self.hidden_sizes) > 0 and min(self.hidden_sizes) >= 1
        require(ok, "network.hidden_sizes", self.hidden_sizes, "give one width or more, each 1 or more")


@dataclass(frozen=True)
class ReplayConfig:
    """The learner's replay memory."""

    capacity: int = 100_000
    """Environment steps kept; the oldest sequence is overwritten first."""
    start: int = 1_000
    """Replayed updates begin once this many environment steps are held, or the memory is full."""
    sampling: Literal["uniform", "prioritized"] = "uniform"
    """How samples are drawn: uniformly, or in proportion to their last errors (Schaul et al. 2016)."""
    priority_exponent: float = 0.6
    """Exponent of errors in prioritized sampling (alpha); 0 is uniform."""
    importance_exponent: float = 0.4
    """Exponent of the weights that correct the loss for prioritized sampling (beta), at the start."""
    importance_exponent_final: float = 0.4
    """The same exponent at the end of the run, or at `schedule_steps`; it changes linearly."""
    device: Literal["learner", "cpu"] = "learner"
    """Where sequences are held: on the learner's device, so that a GPU needs no copies, or in this machine's memory."""
    load: str = ""
    """Folder whose replay memory to start from: of a run with `checkpoint.replay`, or of `apex_acer.write_unrolls`; empty:
    none. Checkpoints then hold the replay memory, too."""

    def __post_init__(self) -> None:
        typed("replay", self)
        at_least(1, "replay", self, "capacity")
        at_least(0, "replay", self, "start")
        fraction("replay", self, "priority_exponent", "importance_exponent", "importance_exponent_final")
        require(
            self.start <= self.capacity, "replay.start", self.start, f"give at most replay.capacity ({self.capacity})"
        )
