"""A forward pass of a stranger's model within bounds on memory and time, each operation measured before it is done."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from memwrap.errors import LoadError

MOST_RESULT = 2**27  # numbers that one operation gives
MOST_WORK = 2**37  # floating-point operations of one operation on tensors
MOST_SECONDS = 30.0  # of the CPU, for one pass

# Operations that give no more numbers than they take, though they take whole numbers, too.
_NOT_LARGER = frozenset(
    {"_softmax", "_log_softmax", "mean", "sum", "amax", "cumsum", "gather", "sort", "topk", "native_channel_shuffle"}
)
# Operations that repeat numbers, as indices say.
_REPEATING = frozenset({"index", "_unsafe_index", "index_select", "embedding", "take", "repeat_interleave"})
_PRODUCTS = {"mm": 0, "addmm": 1}  # and the place of their first matrix among the arguments
_ELEMENTWISE = 8  # floating-point operations for a number of a result, where there is no formula


@contextmanager
def limit_pass() -> Iterator[None]:
    """Refuse a pass that takes gigabytes or minutes: a LoadError."""
    with _LimitedPass():
        yield


class _LimitedPass(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.end = time.thread_time() + MOST_SECONDS

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import its compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not any(result.alias_info is not None for result in func._schema.returns):  # views take nothing
            elements, work = _cost(func, args, kwargs)
            if elements > MOST_RESULT:
                raise LoadError(f"the model computes {elements} numbers at once; allowed are {MOST_RESULT}")
            if work > MOST_WORK:
                raise LoadError(f"the model takes {work} operations in one step; allowed are {MOST_WORK}")
        if time.thread_time() > self.end:
            raise LoadError(f"the model takes more than {MOST_SECONDS:g} seconds for a few images, the most allowed")
        return func(*args, **kwargs)


def _cost(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """How many numbers an operation gives, and how many floating-point operations it takes, by shapes alone."""
    elements = _known_elements(func, args, kwargs)
    if elements is not None:
        return elements, _ELEMENTWISE * elements
    if func._overloadpacket.__name__ in _PRODUCTS:
        left, right = args[_PRODUCTS[func._overloadpacket.__name__] :][:2]
        elements = left.shape[0] * right.shape[1]
        return elements, 2 * elements * left.shape[1]
    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs["device"] = torch.device("meta")
    try:
        result = func(*args, **kwargs)
    except (NotImplementedError, RuntimeError):  # it needs values, as the few do that give one number
        return 0, 0
    elements = sum(tensor.numel() for tensor in _tensors(result))
    formula = flop_registry.get(func._overloadpacket)
    return elements, formula(*args, **kwargs, out_val=result) if formula else _ELEMENTWISE * elements


def _known_elements(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """For operations that cannot give many more numbers than they take; None for others.

    Those are most of them. To give the shapes of some, torch would import its compiler, which takes seconds.
    """
    name, tensors = func._overloadpacket.__name__, _tensors((args, kwargs))
    if torch.Tag.pointwise in func.tags:
        return math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))  # type: ignore[no-untyped-call]
    numbers = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, int) and abs(leaf) > 1]
    if name not in _NOT_LARGER and (numbers or name in _REPEATING or func._overloadpacket in flop_registry):
        return None
    return sum(tensor.numel() for tensor in tensors)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
