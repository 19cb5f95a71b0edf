"""Which pixels made a prediction: heatmaps of the input and of the memory samples that it used, by captum's methods."""

from memwrap.explain.attribution.baselines import BASELINES
from memwrap.explain.attribution.deletion import Deletion, deletion
from memwrap.explain.attribution.maps import Attribution, heatmaps
from memwrap.explain.attribution.methods import METHODS
from memwrap.explain.attribution.pixels import pixel_scores, positive_map

__all__ = ["BASELINES", "METHODS", "Attribution", "Deletion", "deletion", "heatmaps", "pixel_scores", "positive_map"]
