"""Explanations to look at and to send: a page in one file, figures for print, and a check that a page is genuine."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memwrap.report.create import Inputs, Source, create_report
    from memwrap.report.figures import figure
    from memwrap.report.page import read_record, render
    from memwrap.report.record import HeatmapOptions, ReportRecord
    from memwrap.report.verification import Difference, Verification, verify

# Imported on first use: the command line takes small things from this package, and torch takes seconds to import.
_HOMES = {
    "Difference": "verification",
    "HeatmapOptions": "record",
    "Inputs": "create",
    "ReportRecord": "record",
    "Source": "create",
    "Verification": "verification",
    "create_report": "create",
    "figure": "figures",
    "read_record": "page",
    "render": "page",
    "verify": "verification",
}

__all__ = [
    "Difference",
    "HeatmapOptions",
    "Inputs",
    "ReportRecord",
    "Source",
    "Verification",
    "create_report",
    "figure",
    "read_record",
    "render",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memwrap.report' has no attribute {name!r}")
    return getattr(import_module(f"memwrap.report.{_HOMES[name]}"), name)
