"""Rules on which observations suit convolutions; torch-free, so that a run is refused before it starts a process."""

from __future__ import annotations

from apex_acer.config import AlgorithmConfig, NetworkConfig, require
from apex_acer.protocol.specification import EnvironmentSpec

SMALL_MINIMUM = 5  # pixels; the smallest side that leaves one output
CELL = 4  # pixels; the side of a cell of pixel control


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


def require_image(algorithm: AlgorithmConfig, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if a setting needs an image, `image_shift` one without other parts, and there is none."""
    if key := algorithm.pixels_key:
        value = getattr(algorithm, key)
        fits = spec.is_image if key == "image_shift" else spec.has_images
        allowed = f"the observations are {spec.describe_planes()}, it needs images; give 0"
        require(not value or fits, f"algorithm.{key}", value, allowed)


def require_vectors(algorithm: AlgorithmConfig, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if `batch_norm` meets images: batches of them are split, and encoders have no moments."""
    value = getattr(algorithm, "batch_norm", False)
    allowed = f"the observations are {spec.describe_planes()}, it needs vectors; give False"
    require(not (value and spec.has_images), "algorithm.batch_norm", value, allowed)


def first_image(spec: EnvironmentSpec) -> tuple[str, EnvironmentSpec]:
    """Name and specification of the first part that is an image; without one an empty name and `spec`."""
    return next(((name, box) for name, box in spec.seen.items() if box.is_image), ("", spec))


def cells_of(height: int, width: int) -> tuple[int, int, int]:
    """The side of pixel control's cells in pixels, and how many rows and columns of them an image has.

    From 40 pixels a side cells are 4 × 4 and their numbers even: the 20 × 20 of the middle 80 × 80 of 84 × 84 pixels. In a
    smaller image they are the largest of 4, 2 and 1 that leave no pixel out and make four cells or more a side.
    """
    if min(height, width) >= 10 * CELL:
        return CELL, height // (2 * CELL) * 2, width // (2 * CELL) * 2
    sizes = (cell for cell in (CELL, 2) if not height % cell and not width % cell and min(height, width) >= 4 * cell)
    cell = next(sizes, 1)
    return cell, height // cell, width // cell
