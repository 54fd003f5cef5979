"""The head of a policy for choices and numbers together, against the heads of each kind."""

from __future__ import annotations

import dataclasses

import torch

from apex_acer.functional import join_choices
from apex_acer.networks.policies import HybridHead, make_head
from apex_acer.protocol.actions import Box, Discrete, MultiDiscrete
from apex_acer.protocol.composite import Composite
from tests.runs import CARTPOLE

BOX, DIALS = Box((-1.0, 0.0), (3.0, 10.0), (2,), "float32"), MultiDiscrete((2, 4), (0, 0), (2,), "int64")
SPEC = dataclasses.replace(CARTPOLE, actions=Composite(("a", "b", "c"), (Discrete(3, 1), BOX, DIALS)))


@torch.no_grad()
def test_what_was_sampled_is_recorded_for_both() -> None:
    """Actions are clipped to the box, and the density is of the sample; the temperature is of both."""
    torch.manual_seed(0)
    head = make_head(5, SPEC, 0.8)
    assert isinstance(head, HybridHead)
    output, temperature = head(torch.randn(300, 5)), torch.full((300,), 2.0)
    policy = head.distribution(output, temperature)
    logits, mean = torch.split(output.scores, [9, 2], -1)
    first, *_, log_std = policy
    torch.testing.assert_close(first, (logits[:, :3] / 2).log_softmax(-1))
    torch.testing.assert_close(log_std, output.log_std + temperature.log().unsqueeze(-1))
    action, extras = head.sample(policy, torch.Generator().manual_seed(0), greedy=False)
    assert {name: tuple(value.shape[1:]) for name, value in extras.items()} == head.extras
    assert SPEC.actions.refusal(action.numpy()) == ""
    assert len(set(action[:, 0].tolist())) == 24
    behaviour, sampled = head.recorded(action, extras)
    assert (extras["sample"].abs() > 1).any()
    torch.testing.assert_close(sampled, torch.cat([action[:, :1], extras["sample"].double()], -1))
    torch.testing.assert_close(behaviour.log_prob(sampled), policy.log_prob(sampled))
    torch.testing.assert_close(behaviour.kl(policy), torch.zeros(300))
    best, _ = head.sample(policy, torch.Generator(), greedy=True)
    choices = [part.argmax(-1) for part in torch.split(logits, [3, 2, 4], -1)]
    torch.testing.assert_close(best[:, 0].long(), join_choices(choices, [3, 2, 4]))
    torch.testing.assert_close(best[:, 1:].float(), mean.clamp(-1, 1))
