import json

import pytest
import torch
from torch import nn

from apex_acer.algorithms.algorithm import Group, trainable
from apex_acer.config import OptimizerConfig, RunConfig, StopConfig
from apex_acer.learner.optimizer import Optimizer, flatten, make_optimizer
from tests.conftest import config_error

BOTH = pytest.mark.parametrize("name", ["rmsprop", "adam"])


def whole(network):
    """All of a network's trained parameters as one group."""
    return {"network": Group(trainable(network))}


def build(budget=1000, **settings):
    """A parameter of two numbers, [3, −2], and its optimizer."""
    network = nn.Module()
    network.weight = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    settings = {"learning_rate": 0.1, "eps": 1.0, "max_grad_norm": 1e9} | settings
    config = RunConfig(optimizer=OptimizerConfig(**settings), stop=StopConfig(env_steps=budget))
    return network, Optimizer(config, whole(network))


def first_step(name, gradient, learning_rate=0.1, eps=1.0, decay=0.99):
    """How far the first step goes; eps is so large that it depends on the gradient's size."""
    if name == "adam":  # both moments corrected for their start at zero
        return learning_rate * gradient / (gradient.abs() + eps)
    return learning_rate * gradient / (((1 - decay) * gradient.square()).sqrt() + eps)


def linear_loss(network, gradient):
    return (network.weight * gradient).sum()


@pytest.mark.parametrize(("env_steps", "share"), [(0, 1.0), (250, 0.75), (999, 0.001), (1000, 0.0), (1500, 0.0)])
def test_schedules(env_steps, share):
    _, constant = build(schedule="constant")
    _, linear = build(schedule="linear")
    assert constant.learning_rate(env_steps) == 0.1
    assert linear.learning_rate(env_steps) == pytest.approx(0.1 * share)


def test_a_schedule_may_end_elsewhere_than_the_run():
    config = RunConfig(
        optimizer=OptimizerConfig(schedule="linear", learning_rate=0.1), stop=StopConfig(500), schedule_steps=1000
    )
    assert Optimizer(config, whole(nn.Linear(1, 1))).learning_rate(500) == pytest.approx(0.05)


@pytest.mark.parametrize(("env_steps", "share"), [(0, 1.0), (250, 0.8), (500, 0.6), (1000, 0.2), (1500, 0.2)])
def test_a_linear_schedule_ends_at_its_final_fraction(env_steps, share):
    _, linear = build(schedule="linear", final_fraction=0.2)
    _, constant = build(schedule="constant", final_fraction=0.2)
    assert linear.learning_rate(env_steps) == pytest.approx(0.1 * share)
    assert constant.learning_rate(env_steps) == 0.1


def step(optimizer, loss, env_steps, updates=0):
    """One step down `loss`."""
    optimizer.backward(loss)
    return optimizer.step(loss.detach(), env_steps, optimizer.due(updates))


@BOTH
def test_the_step_has_the_scheduled_size(name):
    gradient = torch.tensor([1.0, -0.5], dtype=torch.float64)
    for env_steps, share in ((0, 1.0), (600, 0.4), (1000, 0.0)):
        network, optimizer = build(name=name, schedule="linear")
        before = network.weight.detach().clone()
        norm, taken = step(optimizer, linear_loss(network, gradient), env_steps)
        assert taken
        assert norm == pytest.approx(gradient.norm())
        torch.testing.assert_close(before - network.weight.detach(), first_step(name, gradient, 0.1 * share))


@BOTH
def test_gradients_are_clipped_before_the_step(name):
    network, optimizer = build(name=name, max_grad_norm=0.5)
    before = network.weight.detach().clone()
    gradient = torch.tensor([30.0, -40.0], dtype=torch.float64)
    norm, taken = step(optimizer, linear_loss(network, gradient), 0)
    assert taken
    assert norm == pytest.approx(50.0)  # as it was before clipping
    moved = before - network.weight.detach()
    torch.testing.assert_close(moved, first_step(name, gradient / 100), rtol=1e-5, atol=0)


@BOTH
def test_small_gradients_are_not_clipped(name):
    network, optimizer = build(name=name, max_grad_norm=0.5)
    before = network.weight.detach().clone()
    gradient = torch.tensor([0.3, -0.2], dtype=torch.float64)
    step(optimizer, linear_loss(network, gradient), 0)
    torch.testing.assert_close(before - network.weight.detach(), first_step(name, gradient))


@BOTH
@pytest.mark.parametrize("bad", ["nan gradient", "infinite gradient", "nan loss", "infinite loss"])
def test_non_finite_updates_leave_no_trace(name, bad):
    number = torch.nan if bad.startswith("nan") else torch.inf
    gradient = torch.tensor([1.0, -0.5], dtype=torch.float64)
    network, optimizer = build(name=name)
    before = network.weight.detach().clone()
    if bad.endswith("gradient"):
        loss = linear_loss(network, torch.tensor([1.0, number]))
    else:
        loss = linear_loss(network, gradient) + number
    _, taken = step(optimizer, loss, 0)
    assert not taken
    assert torch.equal(network.weight.detach(), before)
    _, taken = step(optimizer, linear_loss(network, gradient), 0)
    assert taken  # and as the first: neither gradients nor moments kept anything
    torch.testing.assert_close(before - network.weight.detach(), first_step(name, gradient))


@BOTH
def test_steps_lead_to_the_minimum(name):
    network, optimizer = build(name=name, eps=1e-5, learning_rate=0.05)
    for _ in range(300):
        step(optimizer, network.weight.square().sum(), 0)
    assert network.weight.detach().norm() < 0.2


def build_layers(memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 1)).double()
    return network.to(memory_format=memory_format)


@BOTH
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_one_vector_of_all_layers_steps_as_separate_parameters_do(name, memory_format):
    """Against the same optimizer on a copy of the network, with torch's own clipping."""
    network, copy = build_layers(memory_format), build_layers(memory_format)
    settings = OptimizerConfig(name=name, learning_rate=0.01, eps=1e-3, max_grad_norm=0.5)
    optimizer = Optimizer(RunConfig(optimizer=settings), whole(network))
    kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[name]
    decay = {"adam": {"betas": (0.9, settings.decay)}, "rmsprop": {"alpha": settings.decay}}[name]
    separate = kind(copy.parameters(), lr=0.01, eps=1e-3, **decay)
    inputs = torch.randn(20, 5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for x in inputs:
        norm, taken = step(optimizer, network(x).square().mean(), 0)
        separate.zero_grad()
        copy(x).square().mean().backward()
        expected = nn.utils.clip_grad_norm_(copy.parameters(), 0.5)
        separate.step()
        assert taken
        torch.testing.assert_close(norm, expected)
    for ours, theirs in zip(network.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_flattening_keeps_values_and_layers_remain_apart():
    network = build_layers(torch.channels_last)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    vector, gradient = flatten(list(network.parameters()))
    assert vector.numel() == gradient.numel() == sum(parameter.numel() for parameter in before)
    for parameter, value in zip(network.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    with torch.no_grad():
        network[2].bias.fill_(7.0)
    assert (vector == 7.0).sum() == 3
    assert torch.equal(network[3].weight, before[4])


def take_steps(network, optimizer, count):
    for number in range(count):
        x = torch.full((5, 2, 6, 6), 0.1 * number, dtype=torch.float64)
        step(optimizer, network(x).square().mean(), 0)


def optimizer_of(network, **settings):
    return Optimizer(RunConfig(optimizer=OptimizerConfig(learning_rate=0.01, **settings)), whole(network))


@BOTH
def test_another_goes_on_from_its_tensors(name):
    network, other_network = build_layers(), build_layers()
    optimizer, other = (optimizer_of(each, name=name) for each in (network, other_network))
    assert optimizer.tensors() == {}
    other.load(optimizer.tensors())
    take_steps(network, optimizer, 5)
    tensors = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    assert all(key.startswith("optimizer.network.") for key in tensors)
    assert sum(float(tensor.abs().sum()) > 0 for tensor in tensors.values()) == {"adam": 3, "rmsprop": 2}[name]
    other_network.load_state_dict(network.state_dict())
    other.load(tensors | {"network.weight": torch.zeros(3)})
    for each, its_optimizer in ((network, optimizer), (other_network, other)):
        take_steps(each, its_optimizer, 5)
    for mine, theirs in zip(network.parameters(), other_network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert all(torch.equal(other.tensors()[key], tensor) for key, tensor in optimizer.tensors().items())


@BOTH
def test_tensors_of_another_network_or_kind_are_refused(name):
    network = build_layers()
    optimizer = optimizer_of(network, name=name)
    take_steps(network, optimizer, 1)
    tensors = optimizer.tensors()
    small, _ = build(name=name)
    message = config_error(lambda: optimizer_of(small, name=name).load(tensors))
    assert "this network has [2]" in message
    other = {"adam": "rmsprop", "rmsprop": "adam"}[name]
    message = config_error(lambda: optimizer_of(network, name=other).load(tensors))
    assert message.startswith(f"optimizer.name: '{other}' has no ")
    message = config_error(lambda: optimizer.load({"optimizer.network.step": tensors["optimizer.network.step"]}))
    assert message.startswith("optimizer.name: ")
    flat = {key: tensor.sum() for key, tensor in tensors.items()}
    assert "is [], this network has" in config_error(lambda: optimizer.load(flat))


# a user's own


class Counting(torch.optim.Optimizer):
    """Descends by lr / steps made, which it counts in a plain number; adapts a setting of its group; keeps a float64."""

    def __init__(self, parameters, rate):
        super().__init__(parameters, {"lr": rate, "shrink": 1.0, "about": "unchanged", "scale": torch.ones(())})

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        (parameter,) = group["params"]
        state = self.state[parameter]
        state["count"] = state.get("count", 0) + 1
        state.setdefault("sum", torch.zeros(parameter.shape, dtype=torch.float64)).add_(parameter.grad)
        group["shrink"] *= 0.9
        group["scale"].mul_(1.01)
        rate = group["lr"] * group["shrink"] * group["scale"] / state["count"]
        parameter.sub_(rate * (parameter.grad + state["sum"]).to(parameter))


def counting(parameters, settings):
    return Counting(parameters, settings.learning_rate)


def hoarding(parameters, settings):
    optimizer = Counting(parameters, settings.learning_rate)
    optimizer.register_step_post_hook(lambda *_: optimizer.state[parameters[0]].update(history=[1.0]))
    return optimizer


def two_groups(parameters, settings):
    optimizer = counting(parameters, settings)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    return optimizer


def nothing(parameters, settings):
    return None


def raising(parameters, settings):
    raise ZeroDivisionError("two\nlines")


def with_closure(parameters, settings):
    return torch.optim.LBFGS(parameters)


def test_a_user_s_own_goes_on_exactly_from_what_was_saved():
    name = f"{__name__}:counting"
    network, other_network = build_layers(), build_layers()
    optimizer, other = (optimizer_of(each, name=name) for each in (network, other_network))
    take_steps(network, optimizer, 5)
    tensors = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    numbers = json.loads(json.dumps(optimizer.numbers()))
    assert numbers == {"network.count": 5, "network.setting.shrink": pytest.approx(0.9**5)}
    assert {key: tensor.dtype for key, tensor in tensors.items()} == {
        "optimizer.network.sum": torch.float64,
        "optimizer.network.setting.scale": torch.float32,
    }
    other_network.load_state_dict(network.state_dict())
    other.load(tensors, numbers)
    for each, its_optimizer in ((network, optimizer), (other_network, other)):
        take_steps(each, its_optimizer, 5)
    for mine, theirs in zip(network.parameters(), other_network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert other.numbers() == optimizer.numbers()


def test_a_user_s_own_has_the_schedule_and_the_clipped_gradient():
    for env_steps, share in ((0, 1.0), (600, 0.4)):
        network, optimizer = build(name=f"{__name__}:counting", schedule="linear", max_grad_norm=0.5)
        before = network.weight.detach().clone()
        step(optimizer, linear_loss(network, torch.tensor([30.0, -40.0], dtype=torch.float64)), env_steps)
        moved = before - network.weight.detach()
        expected = torch.tensor([0.3, -0.4], dtype=torch.float64) * 2 * 0.1 * share * 0.9 * 1.01
        torch.testing.assert_close(moved, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module:make", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        (f"{__name__}:absent", "is not a function of the module; give module:function"),
        (f"{__name__}:nothing", "have it return a torch.optim.Optimizer with one group"),
        (f"{__name__}:two_groups", "have it return a torch.optim.Optimizer with one group"),
        (f"{__name__}:raising", "could not be made; ZeroDivisionError: two lines"),
        (f"{__name__}:with_closure", "could not be made; TypeError: "),
        (f"{__name__}:hoarding", "it keeps history as list; have it keep tensors and numbers"),
    ],
)
def test_a_user_s_own_that_cannot_be_used_is_refused_at_the_start(name, part):
    config = RunConfig(optimizer=OptimizerConfig(name=name))
    message = config_error(lambda: make_optimizer(config, whole(build_layers())))
    assert message.startswith(f"optimizer.name: '{name}' ")
    assert part in message


def test_frozen_parameters_are_not_in_the_vector():
    network = build_layers()
    network[2].requires_grad_(False)
    before = [parameter.clone() for parameter in network.parameters()]
    optimizer = optimizer_of(network)
    assert optimizer.gradient.numel() == sum(value.numel() for value in before[:2] + before[4:])
    take_steps(network, optimizer, 3)
    changed = [not torch.equal(one, other) for one, other in zip(before, network.parameters(), strict=True)]
    assert changed == [True, True, False, False, True, True]


# groups


def build_groups(**settings):
    """A first layer that steps every third update at its own rate, beside the rest, which has the run's."""
    network = build_layers()
    first = list(network[0].parameters())
    groups = {
        "slow": Group(first, learning_rate=0.002, every=3),
        "rest": Group([p for p in network.parameters() if all(p is not q for q in first)]),
    }
    config = RunConfig(
        optimizer=OptimizerConfig(**{"learning_rate": 0.01, "max_grad_norm": 0.5, "eps": 1e-3} | settings)
    )
    return network, groups, Optimizer(config, groups)


@BOTH
def test_groups_step_as_separate_optimizers_do(name):
    """Each with its own learning rate, its own clipping, and on its own updates."""
    network, _, optimizer = build_groups(name=name)
    copy, groups, _ = build_groups(name=name)
    kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[name]
    decay = {"adam": {"betas": (0.9, 0.99)}, "rmsprop": {"alpha": 0.99}}[name]
    rates = {"slow": 0.002, "rest": 0.01}
    separate = {key: kind(group.parameters, lr=rates[key], eps=1e-3, **decay) for key, group in groups.items()}
    inputs = torch.randn(8, 5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for updates, x in enumerate(inputs):
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
    for ours, theirs in zip(network.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_schedule_holds_for_all_groups():
    moved = []
    for env_steps in (0, 500):
        network, groups, _ = build_groups()
        optimizer = Optimizer(
            RunConfig(optimizer=OptimizerConfig(learning_rate=0.01, schedule="linear"), stop=StopConfig(1000)), groups
        )
        before = [parameter.detach().clone() for parameter in network.parameters()]
        step(optimizer, network(torch.ones(5, 2, 6, 6, dtype=torch.float64)).square().mean(), env_steps)
        moved.append([(new - old).norm() for new, old in zip(network.parameters(), before, strict=True)])
    for whole_step, half in zip(*moved, strict=True):
        torch.testing.assert_close(half, whole_step / 2)


@pytest.mark.parametrize("name", ["rmsprop", "adam", f"{__name__}:counting"])
def test_groups_go_on_exactly_from_what_was_saved(name):
    (network, _, optimizer), (other_network, _, other) = build_groups(name=name), build_groups(name=name)
    inputs = torch.randn(7, 5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for updates, x in enumerate(inputs):
        if updates == 4:  # the slow group has made two steps
            tensors = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
            assert {key.split(".")[1] for key in tensors} == {"slow", "rest"}
            other_network.load_state_dict(network.state_dict())
            other.load(tensors, json.loads(json.dumps(optimizer.numbers())))
        for each, its_optimizer in ((network, optimizer), (other_network, other))[: 2 if updates >= 4 else 1]:
            step(its_optimizer, each(x).square().mean(), 0, updates)
    for mine, theirs in zip(network.parameters(), other_network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert all(torch.equal(other.tensors()[key], tensor) for key, tensor in optimizer.tensors().items())
    assert other.numbers() == optimizer.numbers()


def test_a_group_of_another_size_is_refused_by_its_name():
    network, groups, optimizer = build_groups()
    take_steps(network, optimizer, 1)
    tensors = optimizer.tensors() | {"optimizer.slow.square_avg": torch.zeros(3)}
    message = config_error(lambda: optimizer.load(tensors))
    size = sum(parameter.numel() for parameter in groups["slow"].parameters)
    assert message == f"optimizer.slow.square_avg: is [3], this network has [{size}]"
