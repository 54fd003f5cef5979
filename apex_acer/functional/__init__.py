"""The mathematics: pure functions on tensors, in the dtype they are given.

May import: nothing of the package.
"""

from apex_acer.functional.acer import AcerLoss, acer_loss, acer_policy_gradient
from apex_acer.functional.q_learning import NStep, bootstrap_value, dueling, n_step_return, rescale, unscale
from apex_acer.functional.retrace import retrace
from apex_acer.functional.rewards import shape_rewards
from apex_acer.functional.trust_region import trust_region_projection

__all__ = [
    "AcerLoss",
    "NStep",
    "acer_loss",
    "acer_policy_gradient",
    "bootstrap_value",
    "dueling",
    "n_step_return",
    "rescale",
    "retrace",
    "shape_rewards",
    "trust_region_projection",
    "unscale",
]
