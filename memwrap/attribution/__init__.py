"""Which pixels made a prediction: heatmaps of the input and of the memory samples that it used, by captum's methods."""

from memwrap.attribution.baselines import BASELINES
from memwrap.attribution.deletion import Deletion, deletion
from memwrap.attribution.maps import Attribution, heatmaps
from memwrap.attribution.methods import METHODS
from memwrap.attribution.pixels import pixel_scores, positive_map

__all__ = ["BASELINES", "METHODS", "Attribution", "Deletion", "deletion", "heatmaps", "pixel_scores", "positive_map"]
