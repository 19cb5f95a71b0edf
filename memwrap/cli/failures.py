"""The message and the exit code of a command that fails."""

import errno
import sys
import traceback

from memwrap.errors import (
    DataError,
    InputError,
    LoadError,
    MemwrapError,
    NonFiniteError,
    RunError,
    SaveError,
    SettingsError,
    TrainingError,
    WrapError,
    brief,
)
from memwrap.visible import visible

UNEXPECTED = 1
DIFFERENT = 6  # a report that its run does not confirm
INTERRUPTED = 130  # as shells have it for Ctrl-C

# `memwrap --help` explains them.
CODES: dict[type[MemwrapError], int] = {
    SettingsError: 2,
    InputError: 2,
    WrapError: 2,  # encoder and size of the images do not go together
    DataError: 3,
    RunError: 4,
    LoadError: 4,
    NonFiniteError: 5,
    TrainingError: 5,
    SaveError: 5,
}


def report(error: BaseException, debug: bool) -> int:
    """Print an error to stderr, with its traceback if `debug`; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, MemwrapError):
        print(f"memwrap: {visible(str(error))}", file=sys.stderr)
        return next((code for kind, code in CODES.items() if isinstance(error, kind)), UNEXPECTED)
    if _is_out_of_memory(error):
        print(
            "memwrap: the GPU has too little memory; try a smaller --batch-size, --size or --encoder", file=sys.stderr
        )
        return UNEXPECTED
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        print("memwrap: there is no space left on the device", file=sys.stderr)
        return CODES[SaveError]
    hint = "" if debug else "; --debug shows where"
    print(f"memwrap: unexpected error, {brief(error)}{hint}", file=sys.stderr)
    return UNEXPECTED


def _is_out_of_memory(error: BaseException) -> bool:
    import torch  # only now: a usage error should not wait for it

    return isinstance(error, torch.OutOfMemoryError)
