"""How training shows itself: a bar on a terminal, lines in a log, curves in TensorBoard."""

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

from memwrap.errors import SettingsError
from memwrap.training.loop import Moment

LOG_SECONDS = 10.0  # between two lines of a log, at least


class BarWatcher:
    """One line on a terminal, renewed in place."""

    def __init__(self, progress: Progress, epochs: int) -> None:
        self.progress, self.epochs = progress, epochs
        self.task: TaskID | None = None
        self.accuracy = ""

    def step(self, moment: Moment, images_per_second: float) -> None:
        if self.task is None:
            self.task = self.progress.add_task("training", total=moment.steps, completed=moment.step - 1, words="")
        words = f"loss {moment.loss:.3f}  {self.accuracy}{images_per_second:.0f} images/s"
        epoch = min(int(moment.epoch) + 1, self.epochs)
        self.progress.update(self.task, completed=moment.step, description=f"epoch {epoch}/{self.epochs}", words=words)

    def epoch(self, line: dict[str, Any]) -> None:
        self.accuracy = f"accuracy {line['accuracy']:.1%}  "
        if "validation_accuracy" in line:
            self.accuracy += f"validation {line['validation_accuracy']:.1%}  "


class LineWatcher:
    """A line now and then, for a log: after the first epoch, the last, and between them every few seconds."""

    def __init__(self, console: Console, epochs: int) -> None:
        self.console, self.epochs = console, epochs
        self.printed = float("-inf")

    def step(self, moment: Moment, images_per_second: float) -> None:
        """Steps are not worth a line."""

    def epoch(self, line: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self.printed < LOG_SECONDS and line["epoch"] != self.epochs:
            return
        self.printed = now
        left = line["seconds"] * (self.epochs - line["epoch"]) / line["epoch"]
        words = (
            f"epoch {line['epoch']}/{self.epochs}  loss {line['loss']:.4f}  accuracy {line['accuracy']:.1%}  "
            f"{line['images_per_second']:.0f} images/s  {duration(left)} left"
        )
        if "validation_accuracy" in line:
            words += f"  validation {line['validation_accuracy']:.1%}"
        self.console.print(words, highlight=False)


class TensorBoardWatcher:
    """Curves in the run's folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise SettingsError(
                "tensorboard is not installed: pip install 'memwrap[tensorboard]', or leave --tensorboard out"
            ) from error
        self.writer = SummaryWriter(str(folder))

    def step(self, moment: Moment, images_per_second: float) -> None:
        self.writer.add_scalar("loss", moment.loss, moment.step)
        self.writer.add_scalar("lr", moment.lr, moment.step)

    def epoch(self, line: dict[str, Any]) -> None:
        for name in ("accuracy", "validation_accuracy", "images_per_second"):
            if name in line:
                self.writer.add_scalar(name, line[name], line["step"])
        self.writer.flush()


@contextmanager
def training_bar(console: Console) -> Iterator[Progress]:
    """The bar that a BarWatcher renews."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield progress


def reading_bars(console: Console) -> Callable[[str], AbstractContextManager[Callable[[int, int | None], None]]]:
    """Bars for reading and downloading; a single line each where there is no terminal."""

    @contextmanager
    def bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
        if not console.is_terminal:
            console.print(f"{title} ...", highlight=False)
            yield lambda _done, _total: None
            return
        count = DownloadColumn() if title.startswith("downloading") else MofNCompleteColumn()
        with Progress(
            TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn(), console=console, transient=True
        ) as progress:
            task = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    return bar


def duration(seconds: float) -> str:
    """As people say it: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
