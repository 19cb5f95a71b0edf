"""Explanations to look at and to send: a page in one file, figures for print, and a check that a page is genuine."""

from memwrap.report.create import Inputs, Source, create_report
from memwrap.report.figures import figure
from memwrap.report.page import read_record, render
from memwrap.report.record import HeatmapOptions, ReportRecord
from memwrap.report.verification import Difference, Verification, verify

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
