"""The mathematics of the algorithms: pure functions on tensors, in the dtype they are given.

May import: nothing of the package.
"""

from apex_acer.functional.acer import Targets, acer_metrics, acer_policy_gradient, acer_targets, kl_gradient
from apex_acer.functional.means import masked_means, squared_error_loss
from apex_acer.functional.q_learning import NStep, bootstrap_value, dueling, n_step_return, rescale, unscale
from apex_acer.functional.retrace import retrace
from apex_acer.functional.rewards import shape_rewards
from apex_acer.functional.trust_region import surrogate_loss, trust_region_projection

__all__ = [
    "NStep",
    "Targets",
    "acer_metrics",
    "acer_policy_gradient",
    "acer_targets",
    "bootstrap_value",
    "dueling",
    "kl_gradient",
    "masked_means",
    "n_step_return",
    "rescale",
    "retrace",
    "shape_rewards",
    "squared_error_loss",
    "surrogate_loss",
    "trust_region_projection",
    "unscale",
]
