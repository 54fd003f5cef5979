"""The wrappers of `environments/wrappers.py`, by the address that run files use: `apex_acer.wrappers:<function>`."""

from apex_acer.environments.wrappers import DiscreteActions, hide_velocities, pixels, repeat_2, repeat_8

__all__ = ["DiscreteActions", "hide_velocities", "pixels", "repeat_2", "repeat_8"]
