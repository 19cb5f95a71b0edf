"""SGD for all runs of a stacked model: by one Triton kernel, or by torch."""

import torch
from torch import Tensor

from memwrap.fused.stacked.model import StackedModel


class StackedSGD:
    """SGD for all runs of a stacked model. rate (): may change between steps."""

    def __init__(self, model: StackedModel, rate: Tensor, momentum: float, weight_decay: float, clip: float) -> None:
        self._model = model
        implementation = _TritonSGD if model.kernels else _TorchSGD
        self._sgd = implementation(model, rate, momentum, weight_decay, clip)

    def zero_grad(self) -> None:
        self._model.zero_grad()

    def step(self) -> None:
        self._sgd.step()

    def finish_capture(self) -> None:
        """Call after a step was captured in a graph, before the graph is replayed."""
        self._sgd.finish_capture()

    def reset(self) -> None:
        """Set the momentum to zero, in place: graphs refer to it."""
        self._sgd.reset()


class _TorchSGD:
    def __init__(self, model: StackedModel, rate: Tensor, momentum: float, weight_decay: float, clip: float) -> None:
        self._model, self._clip = model, clip
        self._sgd = torch.optim.SGD(
            list(model.weights.values()), rate, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0
        )

    def step(self) -> None:
        self._model.collect_gradients()
        if self._clip > 0:
            self._clip_gradients()
        self._sgd.step()
        self._model.refresh_copies()

    def _clip_gradients(self) -> None:
        gradients = [weight.grad for weight in self._model.weights.values() if weight.grad is not None]
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        scales = _clip_scales(norms, self._clip)
        for gradient in gradients:
            gradient.mul_(scales.reshape(-1, *[1] * (gradient.ndim - 1)))

    def finish_capture(self) -> None:
        """Nothing to do: only kernels are captured."""

    def reset(self) -> None:
        for state in self._sgd.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()


class _TritonSGD:
    """The same step as `_TorchSGD` in one kernel; with clipping, one more and a few small ones."""

    def __init__(self, model: StackedModel, rate: Tensor, momentum: float, weight_decay: float, clip: float) -> None:
        from memwrap.fused.kernels.sgd import MultiTensorSGD  # Triton may be missing

        self._leaves, self._rate, self._clip = list(model.leaves.values()), rate, clip
        self._sgd = MultiTensorSGD(list(model.weights.values()), self._leaves, momentum, weight_decay)

    def step(self) -> None:
        gradients = self._sgd.collect([leaf.grad for leaf in self._leaves])
        scales = _clip_scales(self._sgd.gradient_norms(gradients), self._clip) if self._clip > 0 else None
        self._sgd.step(gradients, self._rate, scales)

    def finish_capture(self) -> None:
        self._sgd.finish_capture()

    def reset(self) -> None:
        self._sgd.reset()


def _clip_scales(norms: Tensor, clip: float) -> Tensor:
    """Factors (S,) that reduce gradients of these norms (S,) to at most `clip`."""
    return (clip / (norms + 1e-6)).clamp(max=1.0)
