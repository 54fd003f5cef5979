"""UNREAL's losses: fresh sequences as actor-critic learns from them, replayed ones by a slow transcription of the paper."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.algorithms.unreal.unreal import Unreal
from apex_acer.learner.ranks import ALONE
from apex_acer.manager.preparation import prepare
from apex_acer.networks.frames import newest_images
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.planes import pack
from apex_acer.protocol.specification import EnvironmentSpec, Part
from tests.algorithms.learning import NoisyBatch, batch_of, gradients, made, samples_of
from tests.conftest import config_error
from tests.functional import reference
from tests.functional import reference_auxiliary as slow
from tests.functional.reference import Sizes
from tests.runs import tiny_run

SIZES, LSTM, STACK, PLANE = Sizes(7, 6, 3), 5, 2, (1, 8, 9)
CELLS = 1, 8, 9
SPEC = EnvironmentSpec(PLANE, "float32", Discrete(SIZES.actions, 0), STACK, False, 1, PLANE)
WEIGHTS = {"pixel_control": 0.3, "reward_prediction": 0.7, "value_replay": 1.3}
OFF = dict.fromkeys(WEIGHTS, 0.0)


def build_unreal(seed: int = 0, spec: EnvironmentSpec = SPEC, **changes: Any) -> Unreal:
    """An `Unreal` as after some training."""
    algorithm = made("unreal", spec, seed, **{"network__lstm": LSTM, "gamma": 0.8, **WEIGHTS} | changes)
    assert isinstance(algorithm, Unreal)
    return algorithm


def sequences(seed: int = 0, *, fresh: bool = False, lstm: int = LSTM) -> tuple[NoisyBatch, dict[str, Any]]:
    """A batch with every kind of ending and of reward, and the arrays of the same episodes."""
    arrays = reference.random_batch(seed, SIZES)
    rng = np.random.default_rng(seed)
    arrays["reward"] = np.where(rng.random(arrays["reward"].shape) < 0.6, 0.0, arrays["reward"])
    arrays["importance"] = rng.uniform(0.2, 1.0, SIZES.columns)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    shape = (SIZES.length + STACK, SIZES.columns)
    log_probs = torch.randn(*shape[:1], SIZES.columns, SIZES.actions, generator=generator, dtype=torch.float64)
    batch = batch_of(
        torch.rand(*shape, *PLANE, generator=generator, dtype=torch.float64),
        **{name: tensors[name] for name in ("action", "terminated", "truncated", "mask", "reward", "importance")},
        episode_step=torch.randint(0, 4, shape, generator=generator, dtype=torch.int32),
        extras={"log_probs": log_probs[: SIZES.length].log_softmax(-1)},
        state={
            name: torch.randn(SIZES.columns, lstm, generator=generator, dtype=torch.float64)
            for name in ("hidden", "cell")
            if lstm
        },
        fresh=torch.full((SIZES.columns,), fresh),
    )
    return batch, arrays


def states(algorithm: Unreal, samples: Any) -> tuple[Tensor, Tensor]:
    """The torso's features and the LSTM's outputs, `[T+1, B, …]`, one step of one column after the other."""
    network: Any = algorithm.network
    encoded, hidden = [], []
    for b in range(SIZES.columns):
        state = {name: value[b : b + 1] for name, value in samples.state.items()}
        for t in range(SIZES.length + 1):
            features = network.features(network.prepare(samples.obs[t, b].unsqueeze(0)))
            if samples.first[t, b]:
                state = {}
            if network.lstm:
                pair = network.lstm(features, (state["hidden"], state["cell"]) if state else None)
                state = dict(zip(("hidden", "cell"), pair, strict=True))
            encoded.append(features[0])
            hidden.append(state["hidden"][0] if network.lstm else features[0])
    shape = (SIZES.columns, SIZES.length + 1, -1)
    return torch.stack(encoded).view(shape).transpose(0, 1), torch.stack(hidden).view(shape).transpose(0, 1)


def slow_losses(algorithm: Unreal, batch: NoisyBatch, arrays: dict[str, Any]) -> dict[str, Tensor]:
    """Each auxiliary loss, with gradient, by the name of its weight."""
    samples: Any = algorithm.samples.make(batch)
    settings = algorithm.settings
    encoded, hidden = states(algorithm, samples)
    network: Any = algorithm.network
    value = network.value(hidden)[..., 0]
    q_values = algorithm.auxiliary["pixel_control"](hidden)  # [T+1, B, rows, columns, A]
    images = samples.obs[:, :, -1:].numpy()
    change = slow.pixel_change(images, *CELLS)
    change[samples.first.numpy()[1:]] = 0  # another episode's observation is no change
    best = q_values.detach().amax(-1).numpy()
    first, mask = samples.first.numpy(), arrays["mask"]
    losses = {name: torch.zeros((), dtype=torch.float64) for name in ("value_replay", "pixel_control")}
    predictions: dict[tuple[int, int], Tensor] = {}
    classes = {}
    for t, b in np.argwhere(mask):
        weight = arrays["importance"][b] / mask.sum()
        target = slow.n_step_target(arrays, arrays["reward"][:, b], value.detach().numpy()[:, b], t, b, settings.gamma)
        losses["value_replay"] = losses["value_replay"] + weight * 0.5 * (target - value[t, b]) ** 2
        for i, j in np.ndindex(change.shape[2:]):
            target = slow.n_step_target(arrays, change[:, b, i, j], best[:, b, i, j], t, b, 0.9)
            error = target - q_values[t, b, i, j, arrays["action"][t, b]]
            losses["pixel_control"] = losses["pixel_control"] + weight * 0.5 * error**2
        rows = slow.newest_frames(first, t, b, 3)
        if -1 not in rows:
            zero = torch.zeros_like(encoded[0, 0])
            newest = torch.cat([zero if row is None else encoded[row, b] for row in rows])
            logits = algorithm.auxiliary["reward_prediction"](newest)
            classes[t, b] = slow.reward_class(arrays["reward"][t, b])
            predictions[t, b] = -logits.log_softmax(-1)[classes[t, b]]
    losses["reward_prediction"] = slow.skewed_mean(predictions, classes, arrays["importance"])
    return losses


@pytest.mark.parametrize("lstm", [LSTM, 0])
@pytest.mark.parametrize("weights", [WEIGHTS, *(OFF | {name: weight} for name, weight in WEIGHTS.items())])
def test_replayed_sequences_have_the_losses_of_the_paper(weights: dict[str, float], lstm: int) -> None:
    """All three together, and each alone."""
    batch, arrays = sequences(1, lstm=lstm)
    algorithm = build_unreal(1, network__lstm=lstm)
    algorithm.settings = dataclasses.replace(algorithm.settings, **weights)  # type: ignore[arg-type]
    losses = slow_losses(algorithm, batch, arrays)
    expected = torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()
    output = algorithm.loss(samples_of(algorithm, batch))
    torch.testing.assert_close(output.loss, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(output.loss, algorithm), gradients(expected, algorithm), rtol=1e-8, atol=1e-10)
    assert output.num_samples == batch.mask.sum()
    names = {name for name in losses if weights[name]} | {"value_replay"}
    assert {f"{name}_loss" for name in names} == {name for name in output.metrics if name.endswith("_loss")}
    for name in names:
        torch.testing.assert_close(output.metrics[f"{name}_loss"], losses[name].detach(), rtol=1e-10, atol=1e-12)


def test_fresh_sequences_have_the_loss_of_actor_critic() -> None:
    """And priorities by the error of V."""
    batch, _ = sequences(3, fresh=True)
    algorithm = build_unreal(3, value_cost=0.4, entropy_cost=0.02)
    plain = made(
        "actor_critic", SPEC, 4, network__lstm=LSTM, gamma=0.8, gae_lambda=1.0, value_cost=0.4, entropy_cost=0.02
    )
    plain.network.load_state_dict(algorithm.network.state_dict())
    samples = samples_of(algorithm, batch)
    output, expected = algorithm.loss(samples), plain.loss(plain.prepare(plain.samples.make(batch), ALONE))
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(output.metrics, expected.metrics)
    error = (samples.targets["value_target"] - samples.targets["value"]).abs()
    means = [error[:, b][batch.mask[:, b]].mean() for b in range(SIZES.columns)]
    torch.testing.assert_close(output.priorities, torch.stack(means))
    assert not any(parameter.grad is not None for parameter in algorithm.auxiliary.parameters())


def test_reward_prediction_trains_the_encoder_and_its_head_alone() -> None:
    batch, _ = sequences(5)
    algorithm = build_unreal(5)
    algorithm.settings = dataclasses.replace(algorithm.settings, **OFF | {"reward_prediction": 1.0})  # type: ignore[arg-type]
    algorithm.loss(samples_of(algorithm, batch)).loss.backward()  # type: ignore[no-untyped-call]
    learned = {
        name.split(".")[0]
        for name, parameter in algorithm.network.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    }
    assert learned == {"torso"}
    found = [parameter.grad for parameter in algorithm.auxiliary["reward_prediction"].parameters()]
    assert all(gradient is not None and gradient.any() for gradient in found)
    assert not any(parameter.grad is not None for parameter in algorithm.auxiliary["pixel_control"].parameters())


def test_curiosity_pays_in_value_replay_and_not_in_reward_prediction() -> None:
    batch, _ = sequences(7)
    algorithm, plain = build_unreal(7, curiosity=0.5), build_unreal(7)
    samples, without = samples_of(algorithm, batch), samples_of(plain, batch)
    paid = samples.targets["intrinsic_reward"]
    assert paid.any()
    torch.testing.assert_close(samples.reward, without.reward + paid)
    for name, target in without.targets.items():
        assert samples.targets[name].equal(target), name


# ── observations with parts ──

MASKED = EnvironmentSpec.of_parts(
    (
        Part("action_mask", (SIZES.actions,), "int8", False, (SIZES.actions,)),
        Part("camera", PLANE, "uint8", False, PLANE),
    ),
    Discrete(SIZES.actions, 0),
    stack=STACK,
    action_repeat=1,
)


def masked_batch() -> tuple[NoisyBatch, Tensor]:
    """Replayed sequences whose observations have a camera and a mask, and the mask `[T+1, B, A]` of each observation."""
    batch, _ = sequences(6)
    rng = np.random.default_rng(6)
    lead = batch.obs.shape[:2]
    legal = rng.integers(0, 2, (*lead, SIZES.actions)).astype(np.int8)
    legal[..., 1] = 1
    camera = rng.integers(0, 256, (*lead, *PLANE)).astype(np.uint8)
    obs = torch.from_numpy(pack(MASKED, {"action_mask": legal, "camera": camera}, *lead))
    return dataclasses.replace(batch, obs=obs), torch.from_numpy(legal[STACK - 1 :]).bool()


def test_pixel_control_bootstraps_from_legal_actions_only() -> None:
    """A huge value of an illegal action changes no target, one of a legal action does."""
    batch, legal = masked_batch()
    algorithm = build_unreal(6, MASKED)
    samples = samples_of(algorithm, batch)
    images = newest_images(algorithm.samples.make(batch).obs, MASKED)
    assert images.shape == (SIZES.length + 1, SIZES.columns, *PLANE)
    assert 0 <= images.min() < images.max() <= 1
    q_values = torch.randn(*legal.shape[:2], *CELLS[1:], SIZES.actions, dtype=torch.float64)
    obs = samples.obs.flatten(0, 1)

    def error(values: Tensor) -> Tensor:
        algorithm.auxiliary["pixel_control"].forward = lambda features: values
        return algorithm.pixel_control_loss(samples, obs, torch.empty(0))[0]

    expected = error(q_values)
    illegal = ~legal[:, :, None, None].expand_as(q_values)
    taken = torch.zeros_like(illegal)
    taken[:-1] = torch.nn.functional.one_hot(samples.action, SIZES.actions)[:, :, None, None].bool()
    torch.testing.assert_close(error(torch.where(illegal & ~taken, 1e9, q_values)), expected)
    assert not torch.allclose(error(torch.where(~illegal & ~taken, 1e3, q_values)), expected)


# ── what is refused ──


def unreal_run(out: Any, **changes: Any) -> Any:
    return tiny_run(out, algorithm__name="unreal", network__lstm=8, **changes)


def test_pixels_of_vectors_are_refused(tmp_path: Any) -> None:
    message = config_error(lambda: prepare(unreal_run(tmp_path / "run"), 0.0))
    allowed = "the observations are vectors of 4 numbers, float32, it needs images; give 0"
    assert message == f"algorithm.pixel_control: 0.05 is not allowed; {allowed}"
    prepare(unreal_run(tmp_path / "run", algorithm__pixel_control=0.0), 0.0)


@pytest.mark.parametrize("changes", [{"algorithm__replay_ratio": 0.0}, {f"algorithm__{name}": 0.0 for name in OFF}])
def test_losses_and_replay_come_together(changes: dict[str, float]) -> None:
    message = config_error(lambda: unreal_run("", **changes))
    assert message.startswith("algorithm.replay_ratio: ")
    assert "give more than 0 if one of algorithm.pixel_control" in message


def test_several_learners_are_refused() -> None:
    message = config_error(lambda: unreal_run("", engine="ray", learner__count=2, learner__batch_size=8))
    assert message == "learner.count: 2 is not allowed; unreal has one learner; give 1"
