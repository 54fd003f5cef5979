"""Which observations convolutions can take. Torch-free, so that a run is refused before it starts a process."""

from __future__ import annotations

from apex_acer.config import NetworkConfig, require
from apex_acer.protocol.specification import EnvironmentSpec

SMALL_MINIMUM = 5  # pixels; the smallest side that leaves one output


def fits_conv(spec: EnvironmentSpec) -> bool:
    """Whether an observation without parts is an image that is large enough."""
    return spec.is_image and min(spec.obs_shape[1:]) >= SMALL_MINIMUM


def require_torso(config: NetworkConfig, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if convolutions are asked for and the observations have no image for them."""
    if config.torso != "conv":
        return
    if spec.parts:
        fits = any(map(fits_conv, spec.seen.values()))
        given = "no part of the observation is an image"
    else:
        fits, given = fits_conv(spec), f"observations are {list(spec.obs_shape)}, conv needs images"
    require(fits, "network.torso", config.torso, f"{given} of {SMALL_MINIMUM} pixels or more; give mlp")
