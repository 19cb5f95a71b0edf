"""Labelled images: from folders, zips and published data sets to uint8 tensors of one shape.

`open_data` is the entry: it calls `published` for a known name and `folders` for a path. A folder's file names become
classes and splits in `layout`; its bytes come from `containers`, are decoded in `decoding` (where broken files are
refused), checked once in `scan`, and kept in memory (`dataset`) or read on demand (`streaming`).
"""

from typing import TYPE_CHECKING

from memwrap._lazy import lazy_exports

if TYPE_CHECKING:
    from memwrap.data.dataset import DataSet, Images, InMemoryImages, LabelledImages, find_shared
    from memwrap.data.decoding import decode_image
    from memwrap.data.files import UnreadableFile, list_image_files, read_image_files
    from memwrap.data.folders import read_folder
    from memwrap.data.progress import Progress, track_progress
    from memwrap.data.published import CLASS_NAMES, PUBLISHED, digits
    from memwrap.data.sampling import BalancedMemory, MemorySampler, RandomMemory, build_sampler, check_size
    from memwrap.data.seeds import derive_seed, generator
    from memwrap.data.sources import open_data
    from memwrap.data.splits import draw_subset, hold_out
    from memwrap.data.statistics import channel_statistics
    from memwrap.data.streaming import StreamedImages
    from memwrap.data.transform import Transform, normalize

FITS = ("crop", "pad", "stretch")  # how an image of another shape is brought to the target shape

_MODULES = {
    "dataset": ("DataSet", "Images", "InMemoryImages", "LabelledImages", "find_shared"),
    "decoding": ("decode_image",),
    "files": ("UnreadableFile", "list_image_files", "read_image_files"),
    "folders": ("read_folder",),
    "progress": ("Progress", "track_progress"),
    "published": ("CLASS_NAMES", "PUBLISHED", "digits"),
    "sampling": ("BalancedMemory", "MemorySampler", "RandomMemory", "build_sampler", "check_size"),
    "seeds": ("derive_seed", "generator"),
    "sources": ("open_data",),
    "splits": ("draw_subset", "hold_out"),
    "statistics": ("channel_statistics",),
    "streaming": ("StreamedImages",),
    "transform": ("Transform", "normalize"),
}

__all__ = [
    "CLASS_NAMES",
    "FITS",
    "PUBLISHED",
    "BalancedMemory",
    "DataSet",
    "Images",
    "InMemoryImages",
    "LabelledImages",
    "MemorySampler",
    "Progress",
    "RandomMemory",
    "StreamedImages",
    "Transform",
    "UnreadableFile",
    "build_sampler",
    "channel_statistics",
    "check_size",
    "decode_image",
    "derive_seed",
    "digits",
    "draw_subset",
    "find_shared",
    "generator",
    "hold_out",
    "list_image_files",
    "normalize",
    "open_data",
    "read_folder",
    "read_image_files",
    "track_progress",
]

__getattr__ = lazy_exports(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
)
