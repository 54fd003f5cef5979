"""A batch's loss and its gradient: on a CPU in parts side by side, of several learners the whole of their parts.

Torch's own threads meet after every operation, and each waits there for the slowest, which a busy actor may hold up.
Parts of a batch, one thread each, meet once per update.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Algorithm, LossOutput
from apex_acer.learner.optimizer import Optimizer, trained
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.unroll import Batch, split

MIN_SEGMENTS = 2  # of a part; smaller ones make the operations too small


class Gradient:
    """Computes losses of `algorithm` and leaves their gradients with `optimizer`."""

    def __init__(
        self,
        algorithm: Algorithm,
        optimizer: Optimizer,
        num_parts: int,
        ranks: Ranks = ALONE,
    ) -> None:
        """One part is differentiated where it is called from; several share torch's threads among them."""
        self._algorithm, self._ranks = algorithm, ranks
        self._optimizer, self._num_parts = optimizer, num_parts
        self._parameters = trained(algorithm.network)
        self._pool: ThreadPoolExecutor | None = None
        if num_parts > 1:
            torch.set_num_threads(max(1, torch.get_num_threads() // num_parts))
            self._pool = ThreadPoolExecutor(num_parts, "part")

    def compute(self, batch: Batch) -> LossOutput:
        """The detached loss of the whole batch; its gradient is in the parameters' `.grad`.

        Of several learners each gives its part of the batch and gets the priorities of that; all else is the whole's.
        """
        if self._ranks is ALONE:
            return self._compute_own(batch)
        self._ranks.align(self._algorithm.statistics())
        return self._add_up(self._compute_own(batch))

    def _compute_own(self, batch: Batch) -> LossOutput:
        if not self._pool:
            output = self._algorithm.loss(batch)
            self._optimizer.backward(output.loss)
            return output._replace(loss=output.loss.detach())
        outputs, gradients = zip(*self._pool.map(self._differentiate, split(batch, self._num_parts)), strict=True)
        merged = merge(outputs)
        whole = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_copy_(whole, gradients[0])
        for part in gradients[1:]:  # in this order, so that a run repeats to the bit
            torch._foreach_add_(whole, part)
        torch._foreach_div_(whole, merged.num_samples.clamp(min=1).float())
        return merged

    def _add_up(self, own: LossOutput) -> LossOutput:
        """Sums over all learners, divided by all of their samples, as if one had had the whole batch."""
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

    def _differentiate(self, part: Batch) -> tuple[LossOutput, tuple[Tensor, ...]]:
        """The part's output and the gradient of its loss's sum over samples."""
        output = self._algorithm.loss(part)
        gradients = torch.autograd.grad(output.loss * output.num_samples, self._parameters, materialize_grads=True)
        return output._replace(loss=output.loss.detach()), gradients


def merge(outputs: Sequence[LossOutput]) -> LossOutput:
    """What a batch's `loss` gives, from those of its parts."""
    nums = torch.stack([output.num_samples for output in outputs])
    total = nums.sum()

    def mean(parts: list[Tensor]) -> Tensor:
        values = torch.stack(parts)
        return (values * nums.to(values.dtype)).sum() / total.clamp(min=1)

    loss = mean([output.loss for output in outputs])
    metrics = {name: mean([output.metrics[name] for output in outputs]) for name in outputs[0].metrics}
    return LossOutput(loss, metrics, torch.cat([output.priorities for output in outputs]), total)


def num_parts(threads: int, batch_size: int) -> int:
    """Parts for `threads` threads."""
    return max(1, min(threads, batch_size // MIN_SEGMENTS))
