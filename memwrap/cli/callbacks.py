"""Callbacks of training: a bar on a terminal, lines in a log, curves in TensorBoard."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from memwrap.cli.signals import interrupt_if_asked
from memwrap.errors import SettingsError
from memwrap.report.durations import duration
from memwrap.training.trainer import StepMetrics

LOG_SECONDS = 10.0  # between the lines of two epochs in a log, at least
STEP_SECONDS = 60.0  # between lines within an epoch


class ProgressBar:
    """A progress bar, updated in place."""

    def __init__(self, progress: Progress, epochs: int) -> None:
        self.progress, self.epochs = progress, epochs
        self.task: TaskID | None = None
        self.accuracy = self.validation = ""

    def on_step(self, metrics: StepMetrics, images_per_second: float) -> None:
        if self.task is None:
            self.task = self.progress.add_task("training", total=metrics.steps, completed=metrics.step - 1, text="")
        text = f"loss {metrics.loss:.3f}  {self.accuracy}{self.validation}{images_per_second:.0f} images/s"
        epoch = math.ceil(metrics.epoch)
        self.progress.update(self.task, completed=metrics.step, description=f"epoch {epoch}/{self.epochs}", text=text)

    def on_epoch(self, line: dict[str, Any]) -> None:
        self.accuracy = f"accuracy {line['accuracy']:.1%}  "
        if "validation_accuracy" in line:
            self.validation = f"val {line['validation_accuracy']:.1%}  "


class LogLines:
    """Lines for a log: after the first and the last epoch, every few seconds between, and within long epochs."""

    def __init__(self, console: Console, epochs: int) -> None:
        self.console, self.epochs = console, epochs
        self.printed: float | None = None
        self.begun = time.monotonic()

    def on_step(self, metrics: StepMetrics, images_per_second: float) -> None:
        now = time.monotonic()
        if metrics.finished_epoch is None and now - (self.printed or self.begun) >= STEP_SECONDS:
            self.printed = now
            self.console.print(
                f"step {metrics.step}/{metrics.steps}  epoch {math.ceil(metrics.epoch)}/{self.epochs}  "
                f"loss {metrics.loss:.4f}  {images_per_second:.0f} images/s"
            )

    def on_epoch(self, line: dict[str, Any]) -> None:
        now = time.monotonic()
        if self.printed is not None and now - self.printed < LOG_SECONDS and line["epoch"] != self.epochs:
            return
        self.printed = now
        left = line["seconds"] * (self.epochs - line["epoch"]) / line["epoch"]
        text = (
            f"epoch {line['epoch']}/{self.epochs}  loss {line['loss']:.4f}  accuracy {line['accuracy']:.1%}  "
            f"{line['images_per_second']:.0f} images/s  {duration(left)} left"
        )
        if "validation_accuracy" in line:
            text += f"  validation {line['validation_accuracy']:.1%}"
        self.console.print(text)


def curve_writer() -> Any:
    """TensorBoard's SummaryWriter; a SettingsError if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SettingsError(
            "tensorboard is not installed: pip install 'memwrap[tensorboard]', or leave --tensorboard out"
        ) from error
    return SummaryWriter


class TensorBoardCurves:
    """Curves in the run's folder. Points of an earlier process from step `first` on are dropped."""

    def __init__(self, folder: Path, first: int) -> None:
        self.writer = curve_writer()(str(folder), purge_step=first)

    def on_step(self, metrics: StepMetrics, images_per_second: float) -> None:
        self.writer.add_scalar("loss", metrics.loss, metrics.step)
        self.writer.add_scalar("lr", metrics.lr, metrics.step)

    def on_epoch(self, line: dict[str, Any]) -> None:
        for name in ("accuracy", "validation_accuracy", "images_per_second"):
            if name in line:
                self.writer.add_scalar(name, line[name], line["step"])
        self.writer.flush()

    def __enter__(self) -> "TensorBoardCurves":
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()


@contextmanager
def training_bar(console: Console) -> Iterator[Progress]:
    """The bar that `ProgressBar` updates."""
    text, left = TextColumn("{task.fields[text]}"), TimeRemainingColumn(table_column=Column(no_wrap=True))
    # On a narrow terminal, only the bar becomes shorter.
    with Progress(TextColumn("{task.description}"), BarColumn(), text, left, console=console) as progress:
        yield progress


def reading_bars(console: Console) -> Callable[[str], AbstractContextManager[Callable[[int, int | None], None]]]:
    """Bars for reading and downloading; a single line each without a terminal."""

    @contextmanager
    def bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
        if not console.is_terminal:
            console.print(f"{title} ...")
            yield lambda _done, _total: interrupt_if_asked()
            return
        count = DownloadColumn() if title.startswith("downloading") else MofNCompleteColumn()
        with Progress(
            TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn(), console=console, transient=True
        ) as progress:
            task = progress.add_task(title, total=None)

            def update(done: int, total: int | None) -> None:
                interrupt_if_asked()
                progress.update(task, completed=done, total=total)

            yield update

    return bar
