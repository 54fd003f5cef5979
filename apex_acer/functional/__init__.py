"""Pure functions on tensors, in the dtype they are given."""

from apex_acer.functional.acer import AcerLoss, acer_loss, acer_policy_gradient
from apex_acer.functional.retrace import retrace
from apex_acer.functional.trust_region import trust_region_projection

__all__ = ["AcerLoss", "acer_loss", "acer_policy_gradient", "retrace", "trust_region_projection"]
