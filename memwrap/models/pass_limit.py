"""Forward passes of a stranger's model within bounds on memory and time, each operation measured before it is done."""

import math
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from memwrap.errors import LoadError
from memwrap.models.confinement import WEIGHTS_A_SECOND, run_without_memory

MOST_BYTES = 2**29  # that one operation gives, or takes for itself
MOST_WORK = 2**37  # floating-point operations of one operation on tensors
MOST_SECONDS = 25.0  # of the CPU, for all passes

# Operations that give no more numbers than they take, though they take whole numbers, too.
_NOT_LARGER = frozenset(
    {"_softmax", "_log_softmax", "mean", "sum", "amax", "cumsum", "gather", "sort", "topk", "native_channel_shuffle"}
)
# Operations that repeat numbers, as indices say.
_REPEATING = frozenset({"index", "_unsafe_index", "index_select", "embedding", "take", "repeat_interleave"})
_PAIRING = frozenset({"_cdist_forward", "_euclidean_dist"})  # every row with every other
_UNBOUNDED = frozenset({"repeat_interleave"})  # if it takes the numbers from a tensor
# How much slower than in float32 the CPU computes in other precisions, and convolutions whose channels are in groups.
_SLOWER = {torch.float64: 4, torch.float16: 32}
_GROUPED = 8
_PRODUCTS = {"mm": 0, "addmm": 1}  # and the place of their first matrix among the arguments
_ELEMENTWISE = 8  # floating-point operations for a number of a result, where there is no formula


class PassLimit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses passes that take gigabytes or minutes: a LoadError. May be entered again; the time is that of all passes.

    weights: the number of the model's weights. seconds: by None, as long as so many weights justify.
    """

    def __init__(self, weights: int = 0, seconds: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = MOST_SECONDS + weights / WEIGHTS_A_SECOND if seconds is None else seconds
        self.end = time.thread_time() + self.seconds

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import its compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not any(result.alias_info is not None for result in func._schema.returns):  # views take nothing
            taken, work = _cost(func, args, kwargs)
            if taken > MOST_BYTES:
                raise LoadError(f"the model takes {taken} bytes in one step; allowed are {MOST_BYTES}")
            if work > MOST_WORK:
                raise LoadError(f"the model takes {work} operations in one step; allowed are {MOST_WORK}")
        if time.thread_time() > self.end:
            raise LoadError(f"the model takes more than {self.seconds:.0f} seconds for a few images, the most allowed")
        return func(*args, **kwargs)


def _cost(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """How many bytes an operation takes, and how many floating-point operations, by shapes alone."""
    elements, name = _known_elements(func, args, kwargs), func._overloadpacket.__name__
    size = max((tensor.element_size() for tensor in _tensors((args, kwargs))), default=8)
    if elements is not None:
        return size * elements, _ELEMENTWISE * elements
    slower = max((_SLOWER.get(tensor.dtype, 1) for tensor in _tensors((args, kwargs))), default=1)
    if name in _PRODUCTS:
        left, right = args[_PRODUCTS[name] :][:2]
        elements = left.shape[0] * right.shape[1]
        return size * elements, 2 * elements * left.shape[1] * slower
    result = run_without_memory(func, args, kwargs)
    if result is None:  # it needs values
        if name in _UNBOUNDED:
            raise LoadError(f"the model uses {name}, whose result may be of any size")
        return 0, 0
    elements = sum(tensor.numel() for tensor in _tensors(result))
    taken = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(result))
    if name == "convolution" and args[0].dtype != torch.float32:
        taken = max(taken, size * _unfolded(args[0], args[1], result))
    formula = flop_registry.get(func._overloadpacket)
    if formula is not None:
        grouped = name == "convolution" and args[8] > 1
        return taken, formula(*args, **kwargs, out_val=result) * slower * (_GROUPED if grouped else 1)
    if "rnn" in name or "lstm" in name or "gru" in name:  # every step multiplies by all weights
        steps, *weights = _tensors(args)
        return taken, 2 * slower * steps.numel() // max(1, steps.shape[-1]) * sum(each.numel() for each in weights)
    return taken, elements * slower * max(_ELEMENTWISE, _window(func, args, kwargs))


def _unfolded(images: Tensor, weight: Tensor, result: Tensor) -> int:
    """Numbers that a convolution takes for itself where torch has no kernel of its own for it: a copy for each place
    of the filter."""
    return math.prod(weight.shape[1:]) * max(math.prod(images.shape[2:]), math.prod(result.shape[2:]))


def _window(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many numbers a pooling looks at for one of its result; 1 for other operations."""
    named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    sides = named.get("kernel_size", 1)
    dimensions = func._overloadpacket.__name__.partition("pool")[2][:1]
    sides = [sides] if isinstance(sides, int) else list(sides)
    return int(math.prod(sides * int(dimensions) if len(sides) == 1 and dimensions.isdigit() else sides))


def _known_elements(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """For operations that cannot give many more numbers than they take; None for others.

    Those are most of them. To give the shapes of some, torch would import its compiler, which takes seconds.
    """
    name, tensors = func._overloadpacket.__name__, _tensors((args, kwargs))
    if torch.Tag.pointwise in func.tags:
        return math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))  # type: ignore[no-untyped-call]
    numbers = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, int) and abs(leaf) > 1]
    if name not in _NOT_LARGER and (numbers or name in _REPEATING | _PAIRING or func._overloadpacket in flop_registry):
        return None
    return sum(tensor.numel() for tensor in tensors)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
