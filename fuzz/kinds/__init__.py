"""What each kind of case makes and calls. Every function takes the generator that decides everything in its case."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from fuzz.genuine import Genuine
from fuzz.kinds.images import make_images
from fuzz.kinds.reports import make_reports
from fuzz.kinds.runs import make_runs
from fuzz.kinds.settings import make_settings
from fuzz.kinds.zips import make_zips
from fuzz.sandbox import Case

Kind = Callable[[Random, Genuine, Path], Case]
KINDS: dict[str, Kind] = {
    "images": make_images,
    "zips": make_zips,
    "runs": make_runs,
    "reports": make_reports,
    "yaml": make_settings,
}
