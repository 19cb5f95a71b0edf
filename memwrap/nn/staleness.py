"""Noticing that weights have changed since a memory was encoded with them."""

import functools
import operator
from collections.abc import Iterator
from typing import Any

from torch import Tensor, autograd, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_version = operator.attrgetter("_version")


class WeightSnapshot:
    """The tensors of some modules at one moment, and how often each had been written to.

    Torch counts the writes to a tensor: by optimizers, by `load_state_dict`, by batch normalisation's counter in
    training. It does not count writes through `.data`, by a replayed CUDA graph, by `F.batch_norm` to statistics
    without such a counter, nor any to tensors made in inference mode.
    """

    def __init__(self, *modules: nn.Module) -> None:
        _count_writes_of_fused_optimizers()
        self._modules = modules
        self._tables = [table for module in modules for table in _tables(module)]
        self._copies = [dict(table) for table in self._tables]
        self._note_versions(written=False)

    def holds(self, *modules: nn.Module) -> bool:
        """Whether these are the same modules, unchanged: nothing exchanged or removed, no tensor written to."""
        if any(now is not then for now, then in zip(modules, self._modules, strict=True)):
            return False
        try:
            # Runs before every prediction. Tables of the same objects are equal at once; two tensors that are not the
            # same object are compared by value, which raises for those of more than one element.
            same_objects = self._tables == self._copies
        except RuntimeError:
            return False
        return same_objects and list(map(_version, self._tensors)) == self._versions

    def _note_versions(self, written: bool) -> None:
        tensors = [item for table in self._copies for item in table.values() if isinstance(item, Tensor)]
        # Tensors made in inference mode have no version; nor can they be trained.
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]
        self._versions = [_version(tensor) - written for tensor in self._tensors]

    # The tensors of a copy count from zero: a copy has to know whether the original was still fresh.
    def __getstate__(self) -> dict[str, Any]:
        state = {"modules": self._modules, "tables": self._tables, "copies": self._copies}
        return {**state, "holds": self.holds(*self._modules)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._modules, self._tables, self._copies = state["modules"], state["tables"], state["copies"]
        self._note_versions(written=not state["holds"])


@functools.cache
def _count_writes_of_fused_optimizers() -> None:
    """Count the writes of fused optimizers, which torch does not."""

    def count(optimizer: Optimizer, args: object, kwargs: object) -> None:
        for group in optimizer.param_groups:
            if group.get("fused"):
                written = [parameter for parameter in group["params"] if parameter.grad is not None]
                autograd.graph.increment_version(written)

    register_optimizer_step_post_hook(count)


def _tables(module: nn.Module) -> Iterator[dict[str, Any]]:
    """The tables in which torch keeps the parameters, buffers and children of a module and all below it."""
    for part in module.modules():
        yield from (table for table in (part._parameters, part._buffers, part._modules) if table)
