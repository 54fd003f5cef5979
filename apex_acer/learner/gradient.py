"""A batch's loss and gradient: computed by several threads on a CPU, and summed over several learners.

Torch's own threads synchronise after every operation and wait for the slowest, which a busy actor may delay. Parts of a
batch, or separate losses, one thread each, synchronise once per update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Algorithm, LossOutput, SeparateLosses, add_up
from apex_acer.learner.optimizer import Optimizer
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.unroll import Batch, split

MIN_SEGMENTS = 2  # of a part; with fewer the operations are too small


class Gradient:
    """Computes losses of `algorithm` and leaves their gradients in the parameters' `.grad`."""

    def __init__(
        self, algorithm: Algorithm, optimizer: Optimizer, num_parts: int, ranks: Ranks = ALONE, num_losses: int = 1
    ) -> None:
        """Computes so many parts of a batch at a time, or so many of the separate losses of a whole batch, one thread each.

        They share torch's threads. If it is one at a time, it is the whole loss in the caller's thread.
        """
        self._algorithm, self._ranks = algorithm, ranks
        self._optimizer, self._num_parts = optimizer, num_parts
        self._parameters = optimizer.parameters
        self._pool: ThreadPoolExecutor | None = None
        if (num_threads := max(num_parts, num_losses)) > 1:
            torch.set_num_threads(max(1, torch.get_num_threads() // num_threads))
            self._pool = ThreadPoolExecutor(num_threads, "gradient")

    def compute(self, batch: Batch, updates: int) -> LossOutput:
        """The detached loss of the whole batch after `updates` updates, whose gradient it leaves in the parameters' `.grad`.

        If there are several learners, `batch` is this learner's part of it, and so are the `priorities` of the result.
        """
        own = self._compute_own(batch, updates)
        return own if self._ranks is ALONE else self._add_up(own)

    def _compute_own(self, batch: Batch, updates: int) -> LossOutput:
        batch = dataclasses.replace(batch, noise=self._noise(batch))
        if not self._pool:
            output = self._algorithm.loss(batch, updates)
            self._optimizer.backward(output.loss)
            return output._replace(loss=output.loss.detach())
        if self._num_parts == 1:
            return self._compute_losses(self._pool, batch, updates)
        outputs, gradients = zip(
            *self._pool.map(lambda part: self._differentiate(part, updates), split(batch, self._num_parts)), strict=True
        )
        merged = merge(outputs)
        whole = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_copy_(whole, gradients[0])
        for part in gradients[1:]:  # in this order, so that a run repeats to the bit
            torch._foreach_add_(whole, part)
        torch._foreach_div_(whole, merged.num_samples.clamp(min=1).float())
        return merged

    def _compute_losses(self, pool: ThreadPoolExecutor, batch: Batch, updates: int) -> LossOutput:
        assert isinstance(self._algorithm, SeparateLosses)
        self._optimizer.gradient.zero_()
        first, *others = self._algorithm.losses(batch, updates)
        elsewhere = [pool.submit(_backward, loss) for loss in others]
        return add_up([_backward(first), *(output.result() for output in elsewhere)])

    def _noise(self, batch: Batch) -> dict[str, Tensor]:
        noise = self._algorithm.noise(batch)
        return {name: values.to(batch.reward.device) for name, values in noise.items()}

    def _add_up(self, own: LossOutput) -> LossOutput:
        """The sums over all learners, divided by the number of their samples, as if one learner had the whole batch."""
        num, gradient = own.num_samples.double(), self._optimizer.gradient
        figures = torch.stack([num, *(num * mean for mean in (own.loss, *own.metrics.values()))])
        gradient.mul_(num)
        self._ranks.add(figures)
        self._ranks.add(gradient)
        total = figures[0]
        loss, *metrics = figures[1:].div(total.clamp(min=1)).float()
        gradient.div_(total.clamp(min=1))
        return LossOutput(loss, dict(zip(own.metrics, metrics, strict=True)), own.priorities, total)

    def close(self) -> None:
        """Ends the threads."""
        if self._pool:
            self._pool.shutdown()

    def _differentiate(self, part: Batch, updates: int) -> tuple[LossOutput, tuple[Tensor, ...]]:
        """The part's output, and the gradient of its loss summed over samples."""
        output = self._algorithm.loss(part, updates)
        gradients = torch.autograd.grad(output.loss * output.num_samples, self._parameters, materialize_grads=True)
        return output._replace(loss=output.loss.detach()), gradients


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
    return max(1, min(threads, batch_size // MIN_SEGMENTS))
