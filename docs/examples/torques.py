"""Pendulum's torque in eleven steps instead of five: `--environment.wrappers torques:fine`."""

import functools

from apex_acer.wrappers import DiscreteActions

fine = functools.partial(DiscreteActions, bins=11)
