"""A loss and its gradient; on a CPU with several threads, which synchronise once per update.

torch's own threads synchronise after every operation. Here each thread has a part of a batch of images, or one of the
separate losses of an algorithm, such as the critics' and the policy's of SAC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Algorithm, LossOutput, SeparateLosses, add_up, has_separate_losses
from apex_acer.algorithms.samples import Samples, split
from apex_acer.learner.optimizer import Optimizer
from apex_acer.learner.ranks import ALONE, Ranks

MIN_SAMPLES = 2  # of a part of a batch; with fewer the operations are too small


class Gradient:
    """Computes losses of `algorithm` and leaves their gradients in the parameters' `.grad`."""

    def __init__(
        self, algorithm: Algorithm, optimizer: Optimizer, num_parts: int, ranks: Ranks = ALONE, num_losses: int = 1
    ) -> None:
        """Has a thread for each of `num_parts` parts of a batch, or for `num_losses` separate losses of a whole batch.

        They share torch's threads. If both numbers are 1, the whole loss is computed in the caller's thread.
        """
        self._algorithm, self._ranks = algorithm, ranks
        self._optimizer, self._num_parts = optimizer, num_parts
        self._parameters = optimizer.parameters
        self._pool: ThreadPoolExecutor | None = None
        if (num_threads := max(num_parts, num_losses)) > 1:
            torch.set_num_threads(max(1, torch.get_num_threads() // num_threads))
            self._pool = ThreadPoolExecutor(num_threads, "gradient")

    def compute(self, samples: Samples, due: Collection[str]) -> LossOutput:
        """The detached loss of all `samples`, whose gradient it leaves in the parameters' `.grad`.

        Separate losses of groups that are not `due` are left out. If there are several learners, `samples` and the
        `priorities` of the result are this learner's part.
        """
        noise = self._algorithm.noise(samples)
        noise = {name: values.to(samples.importance.device) for name, values in noise.items()}
        samples = dataclasses.replace(samples, noise=noise)
        if self._pool and self._num_parts > 1:
            output = self._compute_parts(self._pool, samples, due)
        elif self._pool:
            output = self._compute_losses(self._pool, samples, due)
        else:
            output = self._loss(samples, due)
            self._optimizer.backward(output.loss)
            output = output._replace(loss=output.loss.detach())
        return output if self._ranks is ALONE else self._add_up(output)

    def _compute_parts(self, pool: ThreadPoolExecutor, samples: Samples, due: Collection[str]) -> LossOutput:
        parts = split(samples, self._num_parts)
        outputs, gradients = zip(*pool.map(lambda part: self._differentiate(part, due), parts), strict=True)
        merged = merge(outputs)
        whole = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_copy_(whole, gradients[0])
        for part in gradients[1:]:  # in this order, so that a run repeats to the bit
            torch._foreach_add_(whole, part)
        torch._foreach_div_(whole, merged.num_samples.clamp(min=1).float())
        return merged

    def _compute_losses(self, pool: ThreadPoolExecutor, samples: Samples, due: Collection[str]) -> LossOutput:
        self._optimizer.gradient.zero_()
        first, *others = self._losses(samples, due)
        futures = [pool.submit(_backward, loss) for loss in others]
        return add_up([_backward(first), *(future.result() for future in futures)])

    def _loss(self, samples: Samples, due: Collection[str]) -> LossOutput:
        if has_separate_losses(self._algorithm):
            return add_up([loss() for loss in self._losses(samples, due)])
        return self._algorithm.loss(samples)

    def _losses(self, samples: Samples, due: Collection[str]) -> list[Callable[[], LossOutput]]:
        assert isinstance(self._algorithm, SeparateLosses)
        return [loss for group, loss in self._algorithm.losses(samples).items() if group in due]

    def _add_up(self, output: LossOutput) -> LossOutput:
        """Means over the samples of all learners, as if one learner had the whole batch."""
        num, gradient = output.num_samples.double(), self._optimizer.gradient
        figures = torch.stack([num, *(num * mean for mean in (output.loss, *output.metrics.values()))])
        gradient.mul_(num)
        self._ranks.add(figures)
        self._ranks.add(gradient)
        total = figures[0]
        loss, *metrics = figures[1:].div(total.clamp(min=1)).float()
        gradient.div_(total.clamp(min=1))
        return LossOutput(loss, dict(zip(output.metrics, metrics, strict=True)), output.priorities, total)

    def _differentiate(self, part: Samples, due: Collection[str]) -> tuple[LossOutput, tuple[Tensor, ...]]:
        """The part's output, and the gradient of its loss summed over samples."""
        output = self._loss(part, due)
        gradients = torch.autograd.grad(output.loss * output.num_samples, self._parameters, materialize_grads=True)
        return output._replace(loss=output.loss.detach()), gradients

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


def make_gradient(
    algorithm: Algorithm, optimizer: Optimizer, threads: int, batch_size: int, ranks: Ranks = ALONE
) -> Gradient:
    """The `Gradient` of batches of `batch_size` samples in up to `threads` threads."""
    images = algorithm.agent.spec.has_images  # batches of anything smaller gain nothing from being split
    parts = num_parts(threads, batch_size) if images else 1
    separate = has_separate_losses(algorithm) and not images
    losses = min(threads, algorithm.settings.num_losses) if separate else 1
    return Gradient(algorithm, optimizer, parts, ranks, losses)


def _backward(loss: Callable[[], LossOutput]) -> LossOutput:
    """The detached loss, whose gradient it adds to the parameters' `.grad`."""
    output = loss()
    output.loss.backward()  # type: ignore[no-untyped-call]
    return output._replace(loss=output.loss.detach())


def merge(outputs: Sequence[LossOutput]) -> LossOutput:
    """The output for a batch from the outputs for its parts."""
    nums = torch.stack([output.num_samples for output in outputs])
    total = nums.sum()

    def mean(parts: list[Tensor]) -> Tensor:
        values = torch.stack(parts)
        return (values * nums.to(values.dtype)).sum() / total.clamp(min=1)

    loss = mean([output.loss for output in outputs])
    metrics = {name: mean([output.metrics[name] for output in outputs]) for name in outputs[0].metrics}
    return LossOutput(loss, metrics, torch.cat([output.priorities for output in outputs]), total)


def num_parts(threads: int, batch_size: int) -> int:
    """The number of parts that `threads` threads compute a batch in."""
    return max(1, min(threads, batch_size // MIN_SAMPLES))
