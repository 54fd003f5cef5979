from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Group, trainable
from apex_acer.config import OptimizerConfig, RunConfig, StopConfig
from apex_acer.learner.optimizer import Optimizer, make_optimizer
from tests.conftest import config_error

OWN = f"{__name__}:counting"
BOTH = pytest.mark.parametrize("name", ["rmsprop", "adam"])


def whole(network: nn.Module) -> dict[str, Group]:
    """All of a network's trained parameters as one group."""
    return {"network": Group(trainable(network))}


class Two(nn.Module):
    """A parameter of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))


def build(budget: int = 1000, schedule_steps: int = 0, **settings: Any) -> tuple[Two, Optimizer]:
    network = Two()
    fixed = {"learning_rate": 0.1, "eps": 1.0, "max_grad_norm": 1e9}
    config = RunConfig(
        optimizer=OptimizerConfig(**(fixed | settings)), stop=StopConfig(budget), schedule_steps=schedule_steps
    )
    return network, Optimizer(config, whole(network))


def optimizer_of(network: nn.Module, **settings: Any) -> Optimizer:
    return Optimizer(RunConfig(optimizer=OptimizerConfig(learning_rate=0.01, **settings)), whole(network))


def step(optimizer: Optimizer, loss: Tensor, env_steps: int = 0, updates: int = 0) -> tuple[Tensor, bool]:
    """One step down `loss`."""
    optimizer.backward(loss)
    return optimizer.step(loss.detach(), env_steps, optimizer.due(updates))


@pytest.mark.parametrize(
    ("settings", "env_steps", "share"),
    [
        ({"schedule": "constant", "final_fraction": 0.2}, 500, 1.0),
        ({"schedule": "linear"}, 1500, 0.0),
        ({"schedule": "linear", "final_fraction": 0.2}, 250, 0.8),
        ({"schedule": "linear", "schedule_steps": 2000}, 1000, 0.5),
    ],
)
def test_the_learning_rate_follows_the_schedule(settings: dict[str, Any], env_steps: int, share: float) -> None:
    assert build(**settings)[1].learning_rate(env_steps) == pytest.approx(0.1 * share)


@BOTH
@pytest.mark.parametrize("bad", ["nan gradient", "infinite loss"])
def test_non_finite_updates_leave_no_trace(name: str, bad: str) -> None:
    (network, optimizer), (other, fresh) = build(name=name), build(name=name)
    spoilt = {"nan gradient": (network.weight * torch.nan).sum(), "infinite loss": network.weight.sum() + torch.inf}
    _, taken = step(optimizer, spoilt[bad])
    assert not taken
    assert torch.equal(network.weight, other.weight)
    for each, its_optimizer in ((network, optimizer), (other, fresh)):
        _, taken = step(its_optimizer, (each.weight * torch.tensor([1.0, -0.5], dtype=torch.float64)).sum())
        assert taken
    assert torch.equal(network.weight, other.weight)  # neither gradients nor moments kept anything


def test_rmsprop_as_tensorflow_has_it_follows_its_equations_also_after_a_resume() -> None:
    """Of `tf.compat.v1.train.RMSPropOptimizer` without momentum, written out."""
    gradients = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (network, optimizer), (resumed_network, resumed) = (build(name="rmsprop_tf", eps=0.01, decay=0.9) for _ in range(2))
    for gradient in gradients[:4]:
        step(optimizer, (network.weight * gradient).sum())
    resumed_network.load_state_dict(network.state_dict())
    resumed.load({name: tensor.clone() for name, tensor in optimizer.tensors().items()})
    for gradient in gradients[4:]:
        step(resumed, (resumed_network.weight * gradient).sum())
    values, mean_square = np.array([3.0, -2.0]), np.ones(2)
    for gradient in gradients.numpy():
        mean_square = 0.9 * mean_square + 0.1 * gradient**2
        values = values - 0.1 * gradient / np.sqrt(mean_square + 0.01)
    np.testing.assert_allclose(resumed_network.weight.detach().numpy(), values, rtol=1e-12)


def build_layers() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 1)).double()
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def images(number: int, seed: int = 1) -> Tensor:
    return torch.randn(number, 5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def torchs_own(name: str, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(parameters, rate, (0.9, 0.99), eps=1e-3)
    return torch.optim.RMSprop(parameters, rate, alpha=0.99, eps=1e-3)


def assert_same_weights(one: nn.Module, other: nn.Module, rtol: float | None = None, atol: float | None = None) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def test_adam_has_the_first_decay_that_is_asked_for() -> None:
    (network, optimizer), other = build(name="adam", beta1=0.5, decay=0.99, eps=1e-3), Two()
    theirs = torch.optim.Adam(other.parameters(), 0.1, (0.5, 0.99), eps=1e-3)
    for target in (1.0, -2.0, 5.0):
        step(optimizer, (network.weight - target).square().sum())
        theirs.zero_grad()
        (other.weight - target).square().sum().backward()  # type: ignore[no-untyped-call]
        theirs.step()
    torch.testing.assert_close(network.weight, other.weight)


def test_frozen_parameters_are_not_in_the_vector() -> None:
    network = build_layers()
    network[2].requires_grad_(False)
    before = [parameter.clone() for parameter in network.parameters()]
    optimizer = optimizer_of(network)
    assert optimizer.gradient.numel() == sum(value.numel() for value in before[:2] + before[4:])
    for x in images(3):
        step(optimizer, network(x).square().mean())
    changed = [not torch.equal(one, other) for one, other in zip(before, network.parameters(), strict=True)]
    assert changed == [True, True, False, False, True, True]  # layers remain apart


# ── a user's own ──


class Counting(torch.optim.Optimizer):
    """Descends by lr / steps made, which it counts in a plain number; adapts a setting of its group; keeps a float64."""

    def __init__(self, parameters: list[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, {"lr": rate, "shrink": 1.0, "about": "unchanged", "scale": torch.ones(())})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        (parameter,) = group["params"]
        state = self.state[parameter]
        state["count"] = state.get("count", 0) + 1
        state.setdefault("sum", torch.zeros(parameter.shape, dtype=torch.float64)).add_(parameter.grad)
        group["shrink"] *= 0.9
        group["scale"].mul_(1.01)
        rate = group["lr"] * group["shrink"] * group["scale"] / state["count"]
        parameter.sub_(rate * (parameter.grad + state["sum"]).to(parameter))


def counting(parameters: list[nn.Parameter], settings: OptimizerConfig) -> Counting:
    return Counting(parameters, settings.learning_rate)


def hoarding(parameters: list[nn.Parameter], settings: OptimizerConfig) -> Counting:
    optimizer = counting(parameters, settings)
    optimizer.register_step_post_hook(lambda *_: optimizer.state[parameters[0]].update(history=[1.0]))
    return optimizer


def two_groups(parameters: list[nn.Parameter], settings: OptimizerConfig) -> Counting:
    optimizer = counting(parameters, settings)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    return optimizer


def nothing(parameters: list[nn.Parameter], settings: OptimizerConfig) -> None:
    return None


def raising(parameters: list[nn.Parameter], settings: OptimizerConfig) -> None:
    raise ZeroDivisionError("two\nlines")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module:make", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        (f"{__name__}:absent", "give module:function"),
        (f"{__name__}:nothing", "have it return a torch.optim.Optimizer with one group"),
        (f"{__name__}:two_groups", "have it return a torch.optim.Optimizer with one group"),
        (f"{__name__}:raising", "could not be made; ZeroDivisionError: two lines"),
        (f"{__name__}:hoarding", "it keeps history as list; have it keep tensors and numbers"),
    ],
)
def test_a_user_s_own_that_cannot_be_used_is_refused_at_the_start(name: str, part: str) -> None:
    config = RunConfig(optimizer=OptimizerConfig(name=name))
    message = config_error(lambda: make_optimizer(config, whole(build_layers())))
    assert message.startswith(f"optimizer.name: '{name}' ")
    assert part in message


# ── groups ──

Built = tuple[nn.Sequential, Mapping[str, Group], Optimizer]


def build_groups(**settings: Any) -> Built:
    """A first layer that steps every third update, beside the rest."""
    network = build_layers()
    first = list(network[0].parameters())
    groups = {
        "slow": Group(first, every=3),
        "rest": Group([p for p in network.parameters() if all(p is not q for q in first)]),
    }
    fixed = {"learning_rate": 0.01, "max_grad_norm": 0.5, "eps": 1e-3}
    config = RunConfig(optimizer=OptimizerConfig(**(fixed | settings)), stop=StopConfig(1000))
    return network, groups, Optimizer(config, groups)


@BOTH
@pytest.mark.parametrize("scale", [100.0, 0.01])
def test_groups_step_as_separate_optimizers_do(name: str, scale: float) -> None:
    """Each by torch's own: with a learning rate that the schedule lowers, its clipping, on its updates."""
    network, _, optimizer = build_groups(name=name, schedule="linear")
    copy, groups, _ = build_groups(name=name)
    separate = {key: torchs_own(name, list(group.parameters), 0.01) for key, group in groups.items()}
    for updates, x in enumerate(images(8)):
        norm, taken = step(optimizer, scale * network(x).square().mean(), 100 * updates, updates)
        copy.zero_grad()
        (scale * copy(x).square().mean()).backward()
        norms = [nn.utils.clip_grad_norm_(group.parameters, 0.5) for group in groups.values()]
        assert min(norms) > 0.5 if scale == 100 else max(norms) < 0.5
        for key, each in separate.items():
            each.param_groups[0]["lr"] = 0.01 * (1 - updates / 10)
            if key == "rest" or updates % 3 == 0:
                each.step()
        assert taken
        torch.testing.assert_close(norm, torch.stack(norms).norm())
        assert_same_weights(network, copy)


@pytest.mark.parametrize("name", ["rmsprop", "adam", OWN])
def test_another_goes_on_exactly_from_what_was_saved(name: str) -> None:
    (network, _, optimizer), (other_network, _, other) = build_groups(name=name), build_groups(name=name)
    inputs = images(7)
    other.load(optimizer.tensors())  # those of none before the first step
    for updates, x in enumerate(inputs[:4]):  # of which the slow group makes two
        step(optimizer, network(x).square().mean(), 0, updates)
    tensors = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    assert {tuple(key.split(".")[:2]) for key in tensors} == {("optimizer", "slow"), ("optimizer", "rest")}
    other_network.load_state_dict(network.state_dict())
    other.load(tensors | {"network.weight": torch.zeros(3)}, json.loads(json.dumps(optimizer.numbers())))
    for updates, x in enumerate(inputs[4:], 4):
        for each, its_optimizer in ((network, optimizer), (other_network, other)):
            step(its_optimizer, each(x).square().mean(), 0, updates)
    assert_same_weights(network, other_network, rtol=0, atol=0)
    for key, tensor in optimizer.tensors().items():
        torch.testing.assert_close(other.tensors()[key], tensor, rtol=0, atol=0)  # also of the same type
    assert other.numbers() == optimizer.numbers()


@BOTH
def test_tensors_of_another_network_or_kind_are_refused(name: str) -> None:
    network, groups, optimizer = build_groups(name=name)
    step(optimizer, network(images(1)[0]).square().mean())
    tensors = optimizer.tensors()
    size = sum(parameter.numel() for parameter in groups["slow"].parameters)
    moment = {"adam": "exp_avg", "rmsprop": "square_avg"}[name]
    message = config_error(lambda: optimizer.load(tensors | {f"optimizer.slow.{moment}": torch.zeros(3)}))
    assert message == f"optimizer.slow.{moment}: is [3], this network has [{size}]"
    other = {"adam": "rmsprop", "rmsprop": "adam"}[name]
    message = config_error(lambda: build_groups(name=other)[2].load(tensors))
    assert message.startswith(f"optimizer.name: '{other}' has no ")
    message = config_error(lambda: optimizer.load({"optimizer.slow.step": tensors["optimizer.slow.step"]}))
    assert message.startswith("optimizer.name: ")
