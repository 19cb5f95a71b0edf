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


class DataError(MemwrapError):
    """A data set that is missing, damaged, unsafe, or cannot be trained on as it is."""


class SettingsError(MemwrapError):
    """A setting that is unknown, of the wrong kind, or at odds with another or with the data."""


class TrainingError(MemwrapError):
    """Training cannot go on: the loss diverged, or nothing could be saved."""


class DivergedError(TrainingError):
    """NaN or infinity in training: the loss or the weights are lost."""


class RunError(MemwrapError):
    """A run's folder that is missing, damaged, unfinished, in use, or holds something else."""


class SaveError(MemwrapError):
    """The model cannot be saved as it is."""


class LoadError(MemwrapError):
    """A saved model is missing, damaged, foreign, newer than this version, or needs its classifier."""


class MemwrapWarning(UserWarning):
    """Something that can be used, but not be relied on as it should."""


def short(value: object) -> str:
    """A value as Python writes it, for use within a message: the first 200 characters."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def brief(error: BaseException) -> str:
    """The kind of an error and the first line of what it says, for use within another message."""
    lines = str(error).splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:200]}"
