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
MOST_SHOWN = 200  # characters of a path
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

_NO_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "failed to map segment",  # of a library, while it is imported
    "could not create a memory",  # in oneDNN, as the next one
    "could not create a primitive",
    "pyobject pointer is null",  # in safetensors, when Python has none left
)


def report(error: BaseException, debug: bool) -> int:
    """Print an error to stderr, with its traceback if `debug`; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, MemwrapError):
        print(f"memwrap: {visible(str(error))}", file=sys.stderr)
        return next((code for kind, code in CODES.items() if isinstance(error, kind)), UNEXPECTED)
    if isinstance(error, OSError) and (known := _describe_os_error(error)) is not None:
        message, code = known
    elif what := _lacking_memory(error):
        message, code = f"{what} has too little memory; try a smaller --batch-size, --size or --encoder", UNEXPECTED
    else:
        hint = "" if debug else "; --debug shows where"
        message, code = f"unexpected error, {brief(error)}{hint}", UNEXPECTED
    print(f"memwrap: {visible(message)}", file=sys.stderr)
    return code


def _describe_os_error(error: OSError) -> tuple[str, int] | None:
    """The message and the exit code for what the system refuses; None if it is nothing that a user can change."""
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        return "there is no space left on the device", CODES[SaveError]
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open; allow more with ulimit -n, or read with fewer --workers", UNEXPECTED
    if error.filename is None or error.errno in (None, errno.ENOMEM):
        return None
    path = str(error.filename)
    shown = path if len(path) <= MOST_SHOWN else f"{path[:MOST_SHOWN]}..."
    if error.errno in (errno.EROFS, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return f"{shown}: cannot be written ({reason})", CODES[SaveError]
    return f"{shown}: cannot be used ({reason}); give another path, or the right to use this one", CODES[SettingsError]


def _lacking_memory(error: BaseException) -> str | None:
    """What has too little memory, if that is the error: torch and its libraries have many words for it."""
    # Not imported for this: a usage error should not wait for torch, and torch may be what there is no memory for.
    if isinstance(error, getattr(sys.modules.get("torch"), "OutOfMemoryError", ())):
        return "the GPU"
    is_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if is_memory or any(words in str(error).lower() for words in _NO_MEMORY):
        return "this computer, or what it allows this process,"
    return None
