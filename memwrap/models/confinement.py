"""Build a network from a stranger's description: nothing but arithmetic, and no more of it than its weights need."""

import ctypes
import math
import mmap
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from memwrap.errors import LoadError

# What a network may take besides its saved weights: the last layer that was removed, and constants that are not saved.
SPARE_ELEMENTS = 2**25
# Initialising a weight may need temporary tensors of its size.
ELEMENTS_PER_WEIGHT = 3
# Of all networks of timm and torchvision, none has more than 2,600 modules or takes more than 102,000 operations.
MAX_MODULES = 20_000
MAX_OPERATIONS = 300_000
# For what Python computes, which no count of tensors sees.
MAX_SECONDS = 15.0  # of the CPU
WEIGHTS_A_SECOND = 5_000_000  # for which there is a second more
SPARE_BYTES = 512 << 20  # besides those of the tensors

# A result that cannot be larger than this is computed before it is counted.
_SMALL = 2**12

# Events of Python's audit hooks (PEP 578) by which code reaches the network or other code.
_REFUSED = frozenset(
    {
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
        "socket.sendto",
        "socket.sendmsg",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "pickle.find_class",
        "_thread.start_new_thread",  # it would not be watched; Python 3.11 has no such event
        "_thread.start_joinable_thread",
    }
)


class _Watched(threading.local):
    active = False


_watched = _Watched()
_hook_lock = threading.Lock()
_hook_installed = False


@contextmanager
def only_arithmetic() -> Iterator[None]:
    """Refuse network, processes, threads and pickles in this thread: a LoadError where any is asked for."""
    _install_hook()
    before, _watched.active = _watched.active, True
    try:
        yield
    finally:
        _watched.active = before


def _install_hook() -> None:
    """Once for the process, as Python cannot remove such a hook; outside of `only_arithmetic` it does nothing."""
    global _hook_installed
    with _hook_lock:
        if not _hook_installed:
            sys.addaudithook(_refuse)
            _hook_installed = True


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED and _watched.active:
        raise LoadError(f"building the classifier would use {event}, which a description from a file may not")


@contextmanager
def limit_size(saved_elements: int) -> Iterator[None]:
    """Refuse, before memory is taken, a network that is far larger than its saved weights: a LoadError."""
    limit = ELEMENTS_PER_WEIGHT * saved_elements + SPARE_ELEMENTS
    thread, modules = threading.get_ident(), 0

    def count(*_: Any) -> None:
        nonlocal modules
        if threading.get_ident() == thread:  # the hook sees the modules of all threads
            modules += 1
            if modules > MAX_MODULES:
                raise LoadError(f"the classifier has more than {MAX_MODULES} modules, the most that are built")

    hook = register_module_module_registration_hook(count)
    try:
        with _Limited(limit), _Watch(MAX_SECONDS + saved_elements / WEIGHTS_A_SECOND, 4 * limit + SPARE_BYTES):
            yield
    finally:
        hook.remove()


class BuildLimitError(LoadError):
    """Raised in the middle of other code, which gives it no message."""

    def __init__(self) -> None:
        super().__init__("building the classifier takes more time or memory than its saved weights justify")


class _Watch:
    """Interrupts this thread by an error when it has computed for so many seconds, or the process has grown so much.

    Native code is interrupted only when it returns to Python; the tensors that it makes are counted before.
    """

    def __init__(self, seconds: float, growth: int) -> None:
        self.thread, self.done = threading.get_ident(), threading.Event()
        self.end, self.largest = self._seconds() + seconds, _resident_bytes() + growth
        self.watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self.watching.start()

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.watching.join()
        self._interrupt(None)  # if it has not been raised yet, it is too late

    def _watch(self) -> None:
        while not self.done.wait(0.02):
            if self._seconds() > self.end or _resident_bytes() > self.largest:
                self._interrupt(BuildLimitError)
                self.done.wait(1)  # again, if the code has caught it

    def _interrupt(self, error: type[Exception] | None) -> None:
        raised = None if error is None else ctypes.py_object(error)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), raised)

    def _seconds(self) -> float:
        """Of the CPU in that thread, where the system tells."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return time.monotonic()
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread))


def _resident_bytes() -> int:
    """Memory that this process has; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


class _Limited(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements of all new tensors, each before it is made."""

    def __init__(self, elements: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements, self.used, self.operations = elements, 0, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Asked by torch, whose wrapper would import the whole compiler on the first operation.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise LoadError(f"the classifier takes more than {MAX_OPERATIONS} operations to build, the most allowed")
        known = _elements_before(func, args, kwargs)
        if known is not None:
            self._take(known)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        self._take(_count(result))
        return result

    def _take(self, elements: int) -> None:
        self.used += elements
        if self.used > self.elements:
            raise LoadError(
                f"the classifier takes {self.used} numbers to build where its saved weights allow {self.elements}: the "
                "description and the weights are not of one model"
            )


def _elements_before(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """How many elements an operation's new tensors will have; None for few, to be counted afterwards."""
    if not _makes_tensors(func):
        return max(0, math.prod(args[1])) if func._schema.name == "aten::resize_" else 0
    if args and isinstance(args[0], list) and not any(isinstance(item, Tensor) for item in args[0]):
        return max(0, math.prod(args[0]))  # the shape of empty, zeros, ones, full, randn, ...
    leaves = tree_leaves((args, kwargs))
    sizes = [leaf.numel() for leaf in leaves if isinstance(leaf, Tensor)]
    numbers = [abs(leaf) for leaf in leaves if isinstance(leaf, int | float)]
    largest = math.prod(max(1, factor) for factor in (*sizes, *numbers))
    if largest <= _SMALL:
        return None
    result = run_without_memory(func, args, kwargs)
    return int(min(largest, sys.maxsize)) if result is None else _count(result)


def run_without_memory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation gives, with shapes alone; None if it needs values, or makes no sense."""
    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs["device"] = torch.device("meta")
    try:
        return func(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        return None


@cache
def _makes_tensors(func: Any) -> bool:
    """Whether an operation neither works in place nor gives a view."""
    schema = func._schema
    return not (schema.is_mutable or any(result.alias_info is not None for result in schema.returns))


def _count(result: Any) -> int:
    return sum(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
