"""Devices by name."""

import torch

from memwrap.errors import SettingsError

AUTO = "auto"


def device_named(name: str) -> torch.device:
    """The device of this name; auto is a GPU if there is one."""
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # fails for a device without memory, such as "meta"
    except (RuntimeError, AssertionError, ImportError) as error:
        known = (
            "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu, as there is no GPU that torch can use"
        )
        raise SettingsError(f"device is {name!r}, which cannot be used here; expected {known}") from error
    return device
