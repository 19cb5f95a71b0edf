"""Every error that memwrap raises on purpose. All are MemwrapErrors, and those are ValueErrors."""


class MemwrapError(ValueError):
    """Something given to memwrap cannot be used; the message says what, why, and what to do."""


class InputError(MemwrapError):
    """Images, encodings, labels, a mask or an option of the wrong type, shape or value."""


class NonFiniteError(MemwrapError):
    """NaN or infinity where a prediction would be built on it."""


class NoMemoryError(MemwrapError):
    """A prediction was asked for, and there is no memory to make it with."""


class StaleMemoryError(MemwrapError):
    """The remembered memory was encoded by weights that have changed since."""


class WrapError(MemwrapError):
    """No layer of the classifier can be replaced by a memory."""


class SaveError(MemwrapError):
    """The model cannot be saved as it is."""


class LoadError(MemwrapError):
    """A saved model is missing, damaged, foreign, newer than this version, or needs its classifier."""


def brief(error: BaseException) -> str:
    """The kind of an error and the first line of what it says, for use within another message."""
    lines = str(error).splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:200]}"
