from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Group, trainable
from apex_acer.config import OptimizerConfig, RunConfig, StopConfig
from apex_acer.learner.optimizer import Optimizer, flatten, make_optimizer
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


def first_step(name: str, gradient: Tensor, learning_rate: float = 0.1) -> Tensor:
    """How far the first step goes; eps is so large, 1, that it depends on the gradient's size."""
    if name == OWN:
        return learning_rate * 0.9 * 1.01 * 2 * gradient
    if name == "adam":  # both moments corrected for their start at zero
        return learning_rate * gradient / (gradient.abs() + 1)
    return learning_rate * gradient / ((0.01 * gradient.square()).sqrt() + 1)


@pytest.mark.parametrize(
    ("settings", "env_steps", "share"),
    [
        ({"schedule": "constant", "final_fraction": 0.2}, 500, 1.0),
        ({"schedule": "linear"}, 0, 1.0),
        ({"schedule": "linear"}, 999, 0.001),
        ({"schedule": "linear"}, 1500, 0.0),
        ({"schedule": "linear", "final_fraction": 0.2}, 250, 0.8),
        ({"schedule": "linear", "final_fraction": 0.2}, 1500, 0.2),
        ({"schedule": "linear", "schedule_steps": 2000}, 1000, 0.5),
    ],
)
def test_the_learning_rate_follows_the_schedule(settings: dict[str, Any], env_steps: int, share: float) -> None:
    assert build(**settings)[1].learning_rate(env_steps) == pytest.approx(0.1 * share)


@pytest.mark.parametrize("name", ["rmsprop", "adam", OWN])
@pytest.mark.parametrize(
    ("gradient", "env_steps", "clipped", "share"),
    [
        ((0.3, -0.2), 0, 1.0, 1.0),
        ((0.3, -0.2), 600, 1.0, 0.4),
        ((30.0, -40.0), 1000, 0.01, 0.0),
        ((30.0, -40.0), 0, 0.01, 1),
    ],
)
def test_the_first_step_is_that_of_the_clipped_gradient_at_the_scheduled_rate(
    name: str, gradient: tuple[float, float], env_steps: int, clipped: float, share: float
) -> None:
    network, optimizer = build(name=name, schedule="linear", max_grad_norm=0.5)
    before, wanted = network.weight.detach().clone(), torch.tensor(gradient, dtype=torch.float64)
    norm, taken = step(optimizer, (network.weight * wanted).sum(), env_steps)
    assert taken
    torch.testing.assert_close(norm, wanted.norm())  # before clipping
    moved = before - network.weight.detach()
    torch.testing.assert_close(moved, first_step(name, clipped * wanted, 0.1 * share))


@BOTH
@pytest.mark.parametrize("bad", ["nan gradient", "infinite loss"])
def test_non_finite_updates_leave_no_trace(name: str, bad: str) -> None:
    gradient = torch.tensor([1.0, -0.5], dtype=torch.float64)
    network, optimizer = build(name=name)
    before = network.weight.detach().clone()
    spoilt = {"nan gradient": (network.weight * torch.nan).sum(), "infinite loss": network.weight.sum() + torch.inf}
    _, taken = step(optimizer, spoilt[bad])
    assert not taken
    assert torch.equal(network.weight.detach(), before)
    _, taken = step(optimizer, (network.weight * gradient).sum())
    assert taken  # and as the first: neither gradients nor moments kept anything
    torch.testing.assert_close(before - network.weight.detach(), first_step(name, gradient))


def build_layers(memory_format: torch.memory_format = torch.contiguous_format) -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 1)).double()
    return network.to(memory_format=memory_format)  # type: ignore[call-overload,no-any-return]


def images(number: int, seed: int = 1) -> Tensor:
    return torch.randn(number, 5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def torchs_own(name: str, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(parameters, rate, (0.9, 0.99), eps=1e-3)
    return torch.optim.RMSprop(parameters, rate, alpha=0.99, eps=1e-3)


def assert_same_weights(one: nn.Module, other: nn.Module, rtol: float | None = None, atol: float | None = None) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


@BOTH
def test_one_vector_of_all_layers_steps_as_separate_parameters_do(name: str) -> None:
    """Against the same optimizer on a copy of the network, with torch's own clipping."""
    network, copy = build_layers(torch.channels_last), build_layers(torch.channels_last)
    optimizer = optimizer_of(network, name=name, eps=1e-3, max_grad_norm=0.5)
    separate = torchs_own(name, list(copy.parameters()), 0.01)
    for x in images(20):
        norm, taken = step(optimizer, network(x).square().mean())
        separate.zero_grad()
        copy(x).square().mean().backward()
        expected = nn.utils.clip_grad_norm_(copy.parameters(), 0.5)
        separate.step()
        assert taken
        torch.testing.assert_close(norm, expected)
    assert_same_weights(network, copy)


def test_flattening_keeps_values_and_layers_remain_apart() -> None:
    network = build_layers(torch.channels_last)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    vector, gradient = flatten(list(network.parameters()))
    assert vector.numel() == gradient.numel() == sum(parameter.numel() for parameter in before)
    for parameter, value in zip(network.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    with torch.no_grad():
        network[2].bias.fill_(7.0)  # type: ignore[operator]
    assert (vector == 7.0).sum() == 3
    assert torch.equal(network[3].weight, before[4])  # type: ignore[arg-type]


def test_frozen_parameters_are_not_in_the_vector() -> None:
    network = build_layers()
    network[2].requires_grad_(False)
    before = [parameter.clone() for parameter in network.parameters()]
    optimizer = optimizer_of(network)
    assert optimizer.gradient.numel() == sum(value.numel() for value in before[:2] + before[4:])
    for x in images(3):
        step(optimizer, network(x).square().mean())
    changed = [not torch.equal(one, other) for one, other in zip(before, network.parameters(), strict=True)]
    assert changed == [True, True, False, False, True, True]


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
    """A first layer that steps every third update at its own rate, beside the rest, which has the run's."""
    network = build_layers()
    first = list(network[0].parameters())
    groups = {
        "slow": Group(first, learning_rate=0.002, every=3),
        "rest": Group([p for p in network.parameters() if all(p is not q for q in first)]),
    }
    fixed = {"learning_rate": 0.01, "max_grad_norm": 0.5, "eps": 1e-3}
    config = RunConfig(optimizer=OptimizerConfig(**(fixed | settings)), stop=StopConfig(1000))
    return network, groups, Optimizer(config, groups)


@BOTH
def test_groups_step_as_separate_optimizers_do(name: str) -> None:
    """Each with its own learning rate, its own clipping, and on its own updates."""
    network, _, optimizer = build_groups(name=name)
    copy, groups, _ = build_groups(name=name)
    rates = {"slow": 0.002, "rest": 0.01}
    separate = {key: torchs_own(name, list(group.parameters), rates[key]) for key, group in groups.items()}
    for updates, x in enumerate(images(8)):
        norm, taken = step(optimizer, 100 * network(x).square().mean(), 0, updates)
        copy.zero_grad()
        (100 * copy(x).square().mean()).backward()
        norms = [nn.utils.clip_grad_norm_(group.parameters, 0.5) for group in groups.values()]
        assert min(norms) > 0.5
        for key, each in separate.items():
            if key == "rest" or updates % 3 == 0:
                each.step()
        assert taken
        torch.testing.assert_close(norm, torch.stack(norms).norm())
    assert_same_weights(network, copy)


def test_the_schedule_holds_for_all_groups() -> None:
    moved = []
    for env_steps in (0, 500):
        network, _, optimizer = build_groups(schedule="linear", eps=1e-5)
        before = [parameter.detach().clone() for parameter in network.parameters()]
        step(optimizer, network(torch.ones(5, 2, 6, 6, dtype=torch.float64)).square().mean(), env_steps)
        moved.append([(new - old).norm() for new, old in zip(network.parameters(), before, strict=True)])
    for whole_step, half in zip(*moved, strict=True):
        torch.testing.assert_close(half, whole_step / 2)


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
