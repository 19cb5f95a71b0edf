"""memwrap attach."""

from pathlib import Path
from typing import Any

from memwrap.cli.callbacks import reading_bars
from memwrap.cli.data_options import DataOptions
from memwrap.cli.evaluate import keep_evaluation, show_evaluation
from memwrap.cli.terminal import at_home, errors, warn
from memwrap.cli.train import refuse_here
from memwrap.encoders import has_pretrained
from memwrap.errors import SettingsError
from memwrap.nn.vote_layer import check_decide
from memwrap.runs.attaching import attach_run, attach_settings
from memwrap.runs.choosing import check_early
from memwrap.runs.data import data_for
from memwrap.runs.devices import device_named
from memwrap.runs.evaluation import encoder_for, evaluate_run
from memwrap.runs.run import refuse_if_taken

NO_TEST = (
    "the run has no test images, as the classifier may have been trained on all of DATA; put others into DATA/test/, "
    "or evaluate on them with memwrap evaluate --data"
)


def attach(
    classifier: str,
    data: str,
    out: Path,
    decide: str | None,
    given: dict[str, Any],
    reading: DataOptions,
    device: str,
    as_json: bool,
) -> None:
    """See `memwrap attach --help`."""
    out, place = at_home(out), device_named(device)
    if not has_pretrained(classifier):
        raise SettingsError(f"the classifier is {classifier!r}; expected timm:NAME, lite0, lite1 or lite2")
    decide = decide or ("vote" if given["weights"] is None else "head")
    check_decide(decide)
    settings = attach_settings(classifier, given)
    check_early(settings)
    refuse_here(out)
    refuse_if_taken(out)
    options = reading.options()
    opened = data_for(data, settings, **options)
    warn(*opened.warnings)
    run = attach_run(out, opened, settings, "vote" if decide == "vote" else "head", place, options["progress"])
    model = run.model(place)
    if len(run.splits.test):
        record = evaluate_run(run, model, opened, None, "test", encoder_for(run, model, reading_bars(errors)))
        keep_evaluation(run, record)
    else:
        record = evaluate_run(run, model, NO_TEST, None, "test")
        errors.print(NO_TEST)
    show_evaluation(record, as_json)
    errors.print(f"nothing was trained; the run is in {run.path}")
