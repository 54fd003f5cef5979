"""The settings of the learner, the optimizer, the network and replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from apex_acer.config.checks import MOST_THREADS, at_least, between, device_name, fraction, importable, positive, typed
from apex_acer.system.errors import require


@dataclass(frozen=True)
class LearnerConfig:
    """The learner: the process with the replay memory and the optimizer."""

    count: int = 1
    """Number of learners, which make each update together; each has an equal part of actors, replay and batch."""
    device: str = "auto"
    """Device of the network: `cpu`, `cuda`, `cuda:N`, or `auto` (cuda if there is one)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of large layers. `auto`: bfloat16 for convolutions and for fully connected layers of 256 or more units,
    if the device supports it and the torso's outputs agree with those in float32."""
    batch_size: int = 16
    """Samples per update: sequences (one environment's part of an unroll), or n-step transitions."""
    threads: int = 0
    """CPU threads of the learner's network; 0: chosen by the number of cores."""
    max_skipped_updates: int = 100
    """The run ends after this many consecutive skipped updates; updates that are not finite are skipped."""
    callback: str = ""
    """`module:function`, called by the learner with the environment steps, each row of metrics and the network, which
    it must not change."""

    def __post_init__(self) -> None:
        typed("learner", self)
        device_name("learner.device", self.device)
        if self.callback:
            importable("learner.callback", self.callback, "module:function")
        at_least(1, "learner", self, "count", "batch_size", "max_skipped_updates")
        between(0, MOST_THREADS, "learner", self, "threads")


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate."""

    name: str = "rmsprop"
    """`rmsprop` (eps outside the root, as in torch), `rmsprop_tf` (eps inside it, and the mean square starts at one, as in
    TensorFlow 1), `adam`, or `module:function` of your own (docs/own-algorithm.md)."""
    learning_rate: float = 7e-4
    """Initial learning rate."""
    schedule: Literal["constant", "linear"] = "constant"
    """`linear`: the learning rate falls to `final_fraction` of it by the end of the run or by `schedule_steps`."""
    final_fraction: float = 0.0
    """Final learning rate of a linear schedule as a fraction of `learning_rate`."""
    eps: float = 1e-5
    """Added to the root of the mean squared gradient."""
    decay: float = 0.99
    """Decay of the mean squared gradient (RMSProp's α, Adam's β₂)."""
    max_grad_norm: float = 40.0
    """Maximum global gradient norm; larger gradients are scaled down to it."""
    beta1: float = 0.9
    """Decay of the mean gradient (Adam's β₁); RMSProp has none."""

    def __post_init__(self) -> None:
        typed("optimizer", self)
        importable("optimizer.name", self.name, "module:function", "rmsprop", "rmsprop_tf", "adam")
        positive("optimizer", self, "learning_rate", "eps", "max_grad_norm")
        fraction("optimizer", self, "decay", "beta1", one=False)
        is_used = self.beta1 == OptimizerConfig.beta1 or self.name not in ("rmsprop", "rmsprop_tf")
        allowed = f"{self.name} has none; give optimizer.name adam, or leave it out"
        require(is_used, "optimizer.beta1", self.beta1, allowed)
        fraction("optimizer", self, "final_fraction")


@dataclass(frozen=True)
class NetworkConfig:
    """The torso of the network; the algorithm adds its heads."""

    torso: str = "auto"
    """`conv`, `mlp`, `auto` (conv for images, mlp for vectors and for images that are too small), or `module:class` of
    your own (docs/own-algorithm.md)."""
    convolutions: Literal["nature", "a3c", "universe", "board"] = "nature"
    """Layers of a conv torso: three (`nature`, Mnih et al. 2015), two at a third of the cost (`a3c`, Mnih et al. 2016),
    four of 32 channels with ELU, for images of 42 pixels (`universe`, of OpenAI's universe-starter-agent), or one of 64
    over each 4 x 4 cells of a board (`board`). Images of less than 36 pixels get two small layers instead of the first
    three."""
    normalise: bool = False
    """Normalise observations by running statistics, which the learner updates and weights files contain."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each fully connected layer, after the convolutions if there are any; empty: none, which CEM alone allows."""
    lstm: int = 0
    """Units of an LSTM between the fully connected layers and the heads; 0: no LSTM."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of the fully connected layers; convolutions use relu, or elu (`universe`)."""
    layer_norm: bool = False
    """Layer normalisation (arXiv 1607.06450) of each layer's outputs before its activation, of convolutions over the
    channels of each pixel; the LSTM, the last layers of heads and a torso of your own have none."""

    def __post_init__(self) -> None:
        typed("network", self)
        importable("network.torso", self.torso, "module:class", "auto", "mlp", "conv")
        at_least(0, "network", self, "lstm")
        ok = min(self.hidden_sizes, default=1) >= 1
        require(ok, "network.hidden_sizes", self.hidden_sizes, "give widths that are each 1 or more")


@dataclass(frozen=True)
class ReplayConfig:
    """The replay memory of the learner."""

    capacity: int = 100_000
    """Environment steps that replay holds; the oldest sequence is overwritten first."""
    start: int = 1_000
    """Environment steps in replay at which updates from it begin; a full memory is enough, too."""
    sampling: Literal["uniform", "prioritized", "rewarded"] = "uniform"
    """`uniform`; `prioritized`: in proportion to each sample's last error (Schaul et al. 2016); or `rewarded`: half of the
    samples have a non-zero reward, and importance weights correct the loss for that (Jaderberg et al. 2017)."""
    priority_exponent: float = 0.6
    """Exponent α of errors in prioritized sampling; 0: uniform."""
    importance_exponent: float = 0.4
    """Initial exponent β of the importance weights that correct the loss for prioritized sampling."""
    importance_exponent_final: float = 0.4
    """Final exponent β, at the end of the run or at `schedule_steps`; it changes linearly."""
    device: Literal["learner", "cpu"] = "learner"
    """Storage of sequences: `learner`, the learner's device, so that a GPU needs no copies; or `cpu`, main memory."""
    load: str = ""
    """Folder whose replay the run starts with: of a run with `checkpoint.replay`, or of `apex_acer.write_unrolls`;
    checkpoints then hold replay, too. Empty: none."""
    compress: bool = False
    """Compress observations in main memory with LZ4, Atari's to less than a tenth; on a GPU they are not compressed."""

    def __post_init__(self) -> None:
        typed("replay", self)
        at_least(1, "replay", self, "capacity")
        at_least(0, "replay", self, "start")
        fraction("replay", self, "priority_exponent", "importance_exponent", "importance_exponent_final")
        allowed = f"give at most replay.capacity ({self.capacity})"
        require(self.start <= self.capacity, "replay.start", self.start, allowed)
