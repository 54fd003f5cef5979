"""Rules on which observations suit convolutions; torch-free, so that a run is refused before it starts a process."""

from __future__ import annotations

from apex_acer.config import AlgorithmConfig, ContinuousConfig, NetworkConfig, require
from apex_acer.protocol.specification import EnvironmentSpec

SMALL_MINIMUM = 5  # pixels; the smallest side that leaves one output


def fits_conv(spec: EnvironmentSpec) -> bool:
    """Whether an observation without parts is an image of at least 5 pixels a side."""
    return spec.is_image and min(spec.obs_shape[1:]) >= SMALL_MINIMUM


def shares_encoder(config: NetworkConfig, spec: EnvironmentSpec) -> bool:
    """Whether actor and critics of DDPG, TD3 and SAC share what comes before their fully connected layers."""
    return spec.has_images and config.torso != "mlp"


def require_torso(config: NetworkConfig, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if `network.torso` is `conv` and the observations have no image for it."""
    if config.torso != "conv":
        return
    fits = any(map(fits_conv, spec.seen.values())) if spec.parts else fits_conv(spec)
    shown = f"observations are {list(spec.obs_shape)}, conv needs images"
    problem = "no part of the observation is an image" if spec.parts else shown
    require(fits, "network.torso", config.torso, f"{problem} of {SMALL_MINIMUM} pixels or more; give mlp")


def require_images(algorithm: AlgorithmConfig, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if `algorithm.image_shift` is to move observations that are not images."""
    shift = algorithm.image_shift if isinstance(algorithm, ContinuousConfig) else 0
    allowed = f"observations are {list(spec.obs_shape)}, it moves images without other parts; give 0"
    require(not shift or spec.is_image, "algorithm.image_shift", shift, allowed)
