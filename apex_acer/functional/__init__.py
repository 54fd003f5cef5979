"""The mathematics of the algorithms: pure functions on tensors, in the dtype they are given.

May import: nothing of the package.
"""

from apex_acer.functional.acer import Targets, acer_metrics, acer_policy_gradient, acer_targets, kl_gradient
from apex_acer.functional.advantages import Advantages, gae, vtrace
from apex_acer.functional.branches import join_choices, joint_logits, split_choices
from apex_acer.functional.conjugate_gradient import conjugate_gradient, fisher_product
from apex_acer.functional.continuous_acer import (
    ContinuousTargets,
    continuous_acer_metrics,
    continuous_acer_policy_gradient,
    continuous_acer_targets,
    log_ratio,
    mean_kl_gradient,
    sample_actions,
    stochastic_dueling,
)
from apex_acer.functional.curiosity import curiosity_loss, forward_error, intrinsic_reward, inverse_error
from apex_acer.functional.ddpg import correlated_noise, smallest_target, smoothed_action
from apex_acer.functional.distributions import (
    Categorical,
    Distribution,
    Factored,
    Gaussian,
    each_tensor,
    squashed_log_prob,
    sum_of,
)
from apex_acer.functional.masks import forbid, is_legal, legal_combinations, random_legal
from apex_acer.functional.means import masked_mean, masked_means, squared_error_loss
from apex_acer.functional.ppo import clipped_surrogate, clipped_value_loss
from apex_acer.functional.q_learning import (
    NStep,
    bootstrap_value,
    dueling,
    n_step_return,
    n_step_returns,
    n_step_target,
    rescale,
    sequence_priority,
    sequence_targets,
    unscale,
)
from apex_acer.functional.retrace import retrace
from apex_acer.functional.rewards import shape_rewards
from apex_acer.functional.sac import soft_policy_loss, soft_target, temperature_loss
from apex_acer.functional.trust_region import surrogate_loss, trust_region_projection

__all__ = [
    "Advantages",
    "Categorical",
    "ContinuousTargets",
    "Distribution",
    "Factored",
    "Gaussian",
    "NStep",
    "Targets",
    "acer_metrics",
    "acer_policy_gradient",
    "acer_targets",
    "bootstrap_value",
    "clipped_surrogate",
    "clipped_value_loss",
    "conjugate_gradient",
    "continuous_acer_metrics",
    "continuous_acer_policy_gradient",
    "continuous_acer_targets",
    "correlated_noise",
    "curiosity_loss",
    "dueling",
    "each_tensor",
    "fisher_product",
    "forbid",
    "forward_error",
    "gae",
    "intrinsic_reward",
    "inverse_error",
    "is_legal",
    "join_choices",
    "joint_logits",
    "kl_gradient",
    "legal_combinations",
    "log_ratio",
    "masked_mean",
    "masked_means",
    "mean_kl_gradient",
    "n_step_return",
    "n_step_returns",
    "n_step_target",
    "random_legal",
    "rescale",
    "retrace",
    "sample_actions",
    "sequence_priority",
    "sequence_targets",
    "shape_rewards",
    "smallest_target",
    "smoothed_action",
    "soft_policy_loss",
    "soft_target",
    "split_choices",
    "squared_error_loss",
    "squashed_log_prob",
    "stochastic_dueling",
    "sum_of",
    "surrogate_loss",
    "temperature_loss",
    "trust_region_projection",
    "unscale",
    "vtrace",
]
