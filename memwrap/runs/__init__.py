"""Runs: folders that training makes, that can be resumed after any stop, and that all other commands read."""

from memwrap.runs.base import Callback, RunTraining
from memwrap.runs.checking import CheckResult, check_folder
from memwrap.runs.data import data_for, data_of
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.run import Run, SavedModel, open_model, open_run
from memwrap.runs.scores import Evaluation
from memwrap.runs.training import begin, resume

__all__ = [
    "Callback",
    "CheckResult",
    "Evaluation",
    "Run",
    "RunTraining",
    "SavedModel",
    "begin",
    "check_folder",
    "data_for",
    "data_of",
    "evaluate_run",
    "open_model",
    "open_run",
    "resume",
]
