"""The models of several runs as one model: one pass, and one step, moves them all."""

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from memwrap.fused.stacked.layers import PassContext, stack_layers
from memwrap.models.loading import Model

_ENCODER = "encoder."


class Stack:
    """So many models of one kind, made for values of others to be brought in and out.

    values: by the names of a model's state, each (S, ...). precision: bfloat16 keeps, beside the weights, copies of
    those that multiply: what autocast would otherwise make of each in every pass.
    """

    def __init__(self, model: Model, runs: int, precision: torch.dtype, kernels: bool) -> None:
        self.runs, self.kernels, self.model = runs, kernels, copy.deepcopy(model)
        self.model.train()
        device = model.reference.device
        self.told = PassContext(torch.zeros(runs, dtype=torch.int64, device=device))
        self.values = {name: _stacked(value, runs) for name, value in model.state_dict().items()}
        # By name, what learns; and what a pass uses of it, which has the gradients.
        learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.weights = {name: self.values[name].requires_grad_() for name in learning}
        multiplying = _multiplying(model) if precision != torch.float32 else set()
        self.leaves = {
            name: value.detach().to(precision).requires_grad_() if name in multiplying else value
            for name, value in self.weights.items()
        }
        used = {**self.values, **self.leaves}
        self._of_layer = {name: used[name] for name in used if name.startswith("layer.")}
        of_encoder = {name.removeprefix(_ENCODER): used[name] for name in used if name.startswith(_ENCODER)}
        stack_layers(self.model.encoder, of_encoder, self.told, kernels)

    def encode(self, images: Tensor, first: int | None) -> Tensor:
        """images (S * N, channels, H, W), of each run the first so many as if in a pass of their own -> (S, N, D)"""
        self.told.first = first
        encodings = self.model.encode(images)
        return encodings.reshape(self.runs, -1, encodings.shape[1])

    def judge(self, judge: Callable[[nn.Module, Tensor], Tensor], encodings: Tensor) -> Tensor:
        """judge(layer, encodings (N, D)) of every run with its own layer: encodings (S, N, D) -> (S, ...)"""
        judging = _Judging(self.model.layer, judge)
        found: Tensor = vmap(lambda values, own: functional_call(judging, values, own))(self._of_layer, encodings)
        return found

    def load(self, models: Sequence[nn.Module]) -> None:
        """Take over the state of one model for each run."""
        with torch.no_grad():
            for own, of_models in self._beside(models):
                torch._foreach_copy_(own, of_models)
        self.refresh()

    def unload(self, models: Sequence[nn.Module]) -> None:
        """Give each model the state of its run."""
        with torch.no_grad():
            for own, of_models in self._beside(models):
                torch._foreach_copy_(of_models, own)

    def _beside(self, models: Sequence[nn.Module]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Of each value, where it lies for all runs, and where in their models."""
        states = [model.state_dict() for model in models]
        for name, value in self.values.items():
            yield list(value.detach().unbind()), [state[name] for state in states]

    def count(self, passes: int) -> None:
        """Note how many batches the normalisations have seen, which a pass does not."""
        for name in self.told.used:
            self.values[f"{_ENCODER}{name}.num_batches_tracked"].add_(passes)

    def forget_gradients(self) -> None:
        """Before a backward pass: it shall not add to what an earlier one gave."""
        for leaf in (*self.leaves.values(), *self.weights.values()):
            leaf.grad = None

    def take_gradients(self) -> None:
        """After a backward pass: give the weights the gradients of what was used of them."""
        pairs = [(self.weights[name], leaf) for name, leaf in self.leaves.items()]
        rounded = [(weight, leaf.grad) for weight, leaf in pairs if leaf is not weight and leaf.grad is not None]
        gradients = [torch.empty_like(weight) for weight, _ in rounded]
        if gradients:
            torch._foreach_copy_(gradients, [gradient for _, gradient in rounded])
        for (weight, _), gradient in zip(rounded, gradients, strict=True):
            weight.grad = gradient

    def refresh(self) -> None:
        """After weights have changed: let a pass use them as they are now."""
        copies = [(leaf, self.weights[name]) for name, leaf in self.leaves.items() if leaf is not self.weights[name]]
        if copies:
            with torch.no_grad():
                torch._foreach_copy_([leaf for leaf, _ in copies], [weight for _, weight in copies])

    def shorten_gradients(self, most: float) -> None:
        """Scale the gradients of every run that are longer than this down to it."""
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        scales = _scales(lengths, most)
        for gradient in gradients:
            gradient.mul_(scales.reshape(-1, *[1] * (gradient.ndim - 1)))


class _Judging(nn.Module):
    """What is done with a last layer, as a module, whose values can be lent to it for one call."""

    def __init__(self, layer: nn.Module, judge: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self._judge = layer, judge

    def forward(self, encodings: Tensor) -> Tensor:
        return self._judge(self.layer, encodings)


class StackedSgd:
    """SGD for all runs of a stack; what a step needs of an optimiser. rate (): may change between steps."""

    def __init__(self, stack: Stack, rate: Tensor, momentum: float, weight_decay: float, clip: float) -> None:
        self.stack = stack
        way = _SgdByKernels if stack.kernels else _SgdByTorch
        self._sgd = way(stack, rate, momentum, weight_decay, clip)

    def zero_grad(self) -> None:
        self.stack.forget_gradients()

    def step(self) -> None:
        self._sgd.step()

    def settle(self) -> None:
        """After a step has been captured in a graph, and before that is replayed."""
        self._sgd.settle()

    def forget(self) -> None:
        """As if no step had been taken; what steps wrote to stays where it lies."""
        self._sgd.forget()


class _SgdByTorch:
    """Where there are no kernels."""

    def __init__(self, stack: Stack, rate: Tensor, momentum: float, weight_decay: float, clip: float) -> None:
        self._stack, self._clip = stack, clip
        self._sgd = torch.optim.SGD(
            list(stack.weights.values()), rate, momentum=momentum, weight_decay=weight_decay, nesterov=momentum > 0
        )

    def step(self) -> None:
        self._stack.take_gradients()
        if self._clip > 0:
            self._stack.shorten_gradients(self._clip)
        self._sgd.step()
        self._stack.refresh()

    def settle(self) -> None:
        """Graphs are for kernels."""

    def forget(self) -> None:
        for state in self._sgd.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()


class _SgdByKernels:
    """All that the other does in a step, by one kernel; one more and a few small ones if it clips."""

    def __init__(self, stack: Stack, rate: Tensor, momentum: float, weight_decay: float, clip: float) -> None:
        from memwrap.fused.kernels.updating import Update  # Triton is there where there is a GPU

        self._leaves, self._rate, self._clip = list(stack.leaves.values()), rate, clip
        self._update = Update(list(stack.weights.values()), self._leaves, momentum, weight_decay)

    def step(self) -> None:
        gradients = self._update.read([leaf.grad for leaf in self._leaves])
        scales = _scales(self._update.lengths(gradients), self._clip) if self._clip > 0 else None
        self._update.move(gradients, self._rate, scales)

    def settle(self) -> None:
        self._update.settle()

    def forget(self) -> None:
        self._update.forget()


def _scales(lengths: Tensor, most: float) -> Tensor:
    """What shortens gradients of these lengths to no more than this: (S,) -> (S,)"""
    return (most / (lengths + 1e-6)).clamp(max=1.0)


def _stacked(value: Tensor, runs: int) -> Tensor:
    """The same value for so many runs.

    In memory, the kernels of convolutions lie as GPUs read them quickest, and matrices as autograd gives gradients of
    those of `vmap`: it would copy others.
    """
    if value.ndim == 4:
        return torch.stack([value.permute(0, 2, 3, 1)] * runs).permute(0, 1, 4, 2, 3)
    return torch.stack([value.mT] * runs).mT if value.ndim == 2 else torch.stack([value] * runs)


def _multiplying(model: nn.Module) -> set[str]:
    """The names of the parameters that autocast rounds: those of linear layers and convolutions."""
    layers: Sequence[tuple[str, nn.Module]] = [
        (name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    return {f"{name}.{own}" for name, module in layers for own, _ in module.named_parameters(recurse=False)}
