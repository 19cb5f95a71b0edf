"""The models of several runs as one model, whose forward pass computes all of them."""

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from memwrap.fused.stacked.layers import PassContext, stack_layers
from memwrap.models.loading import Model

_ENCODER = "encoder."


class StackedModel:
    """The stacked weights and buffers of S models of one architecture.

    values: the state dict, each value (S, ...). weights: those that are trained, float32. leaves: the tensors that a
    forward pass uses for them and that receive the gradients. With precision bfloat16, leaves of linear layers and
    convolutions are copies in bfloat16, which autocast would otherwise make in every pass.
    """

    def __init__(self, model: Model, runs: int, precision: torch.dtype, kernels: bool) -> None:
        self.runs, self.kernels, self.model = runs, kernels, copy.deepcopy(model)
        self.model.train()
        device = model.reference.device
        self.context = PassContext(torch.zeros(runs, dtype=torch.int64, device=device))
        self.values = {name: stack_value(value, runs) for name, value in model.state_dict().items()}
        trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.weights = {name: self.values[name].requires_grad_() for name in trainable}
        autocast = _autocast_weights(model) if precision != torch.float32 else set()
        self.leaves = {
            name: value.detach().to(precision).requires_grad_() if name in autocast else value
            for name, value in self.weights.items()
        }
        used = {**self.values, **self.leaves}
        self._layer_values = {name: used[name] for name in used if name.startswith("layer.")}
        encoder_values = {name.removeprefix(_ENCODER): used[name] for name in used if name.startswith(_ENCODER)}
        stack_layers(self.model.encoder, encoder_values, self.context, kernels)

    def encode(self, images: Tensor, first: int | None) -> Tensor:
        """images (S * N, channels, H, W) -> encodings (S, N, D)

        first: how many images of each run form the first batch for batch normalisation; the others form the second.
        """
        self.context.first = first
        encodings = self.model.encode(images)
        return encodings.reshape(self.runs, -1, encodings.shape[1])

    def apply_layer(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """function(layer, *own inputs) of every run, with the weights of its layer: inputs (S, ...) -> (S, ...)"""
        module = _LayerFunction(self.model.layer, function)
        out: Tensor = vmap(lambda values, *own: functional_call(module, values, own))(self._layer_values, *inputs)
        return out

    def load(self, models: Sequence[nn.Module]) -> None:
        """Copy the state of one model into each run."""
        with torch.no_grad():
            for own, theirs in self._pairs(models):
                torch._foreach_copy_(own, theirs)
        self.refresh_copies()

    def unload(self, models: Sequence[nn.Module]) -> None:
        """Copy the state of each run into its model."""
        with torch.no_grad():
            for own, theirs in self._pairs(models):
                torch._foreach_copy_(theirs, own)

    def _pairs(self, models: Sequence[nn.Module]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """For each value, the tensors of all runs here and in their models."""
        states = [model.state_dict() for model in models]
        for name, value in self.values.items():
            yield list(value.detach().unbind()), [state[name] for state in states]

    def count_batches(self, passes: int) -> None:
        """Add to `num_batches_tracked` of the normalisations that were used, which a stacked pass does not do."""
        for name in self.context.used:
            self.values[f"{_ENCODER}{name}.num_batches_tracked"].add_(passes)

    def zero_grad(self) -> None:
        for leaf in (*self.leaves.values(), *self.weights.values()):
            leaf.grad = None

    def collect_gradients(self) -> None:
        """Give the weights the gradients of their copies, in float32."""
        pairs = [(self.weights[name], leaf) for name, leaf in self.leaves.items()]
        rounded = [(weight, leaf.grad) for weight, leaf in pairs if leaf is not weight and leaf.grad is not None]
        gradients = [torch.empty_like(weight) for weight, _ in rounded]
        if gradients:
            torch._foreach_copy_(gradients, [gradient for _, gradient in rounded])
        for (weight, _), gradient in zip(rounded, gradients, strict=True):
            weight.grad = gradient

    def refresh_copies(self) -> None:
        """Round the weights into their copies again, after they have changed."""
        copies = [(leaf, self.weights[name]) for name, leaf in self.leaves.items() if leaf is not self.weights[name]]
        if copies:
            with torch.no_grad():
                torch._foreach_copy_([leaf for leaf, _ in copies], [weight for _, weight in copies])


class _LayerFunction(nn.Module):
    """A function of a layer as a module, so that `functional_call` can exchange the layer's values."""

    def __init__(self, layer: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self._function = layer, function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._function(self.layer, *inputs)


def stack_value(value: Tensor, runs: int) -> Tensor:
    """The value repeated for each run, (S, ...).

    Convolution weights are in channels_last, which GPUs read fastest. Matrices have the layout of the gradients that
    autograd returns through `vmap`, which would otherwise be copied.
    """
    if value.ndim == 4:
        return torch.stack([value.permute(0, 2, 3, 1)] * runs).permute(0, 1, 4, 2, 3)
    return torch.stack([value.mT] * runs).mT if value.ndim == 2 else torch.stack([value] * runs)


def _autocast_weights(model: nn.Module) -> set[str]:
    """The names of the parameters that autocast rounds: those of linear layers and convolutions."""
    layers: Sequence[tuple[str, nn.Module]] = [
        (name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    return {f"{name}.{own}" for name, module in layers for own, _ in module.named_parameters(recurse=False)}
