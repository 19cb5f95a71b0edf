"""An explanation as JSON values, for scripts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from memwrap.explain.explanation import MemorySample
from memwrap.explain.sentences import largest_effect
from memwrap.report.content import Card


def as_record(card: Card, memory_names: Sequence[str] | None) -> dict[str, Any]:
    """All that is known of one image; the first fields as `memwrap predict --json` has them."""
    explanation = card.explanation
    return {
        "path": card.name,
        "label": explanation.prediction,
        "name": card.prediction,
        "probability": card.probability,
        "uncertain": explanation.uncertain,
        "sentence": card.sentence,
        "effect_sentence": card.effect_sentence,
        "flip_sentence": card.flip,
        "true_label": card.label,
        "largest_effect": largest_effect(explanation),
        "probabilities": explanation.probabilities.tolist(),
        "samples": [_sample(sample, card, memory_names) for sample in explanation.samples],
        "flip_set": asdict(explanation.flip_set),
        "check": asdict(explanation.check()),
        "heatmap": _heatmap(card),
    }


def _heatmap(card: Card) -> dict[str, Any] | None:
    """How the heatmaps were made and how far to trust them; the maps themselves are pictures."""
    heat, deletion = card.heatmap, card.deletion
    if heat is None or deletion is None:
        return None
    return {
        "method": heat.method,
        "baseline": heat.baseline,
        "steps": heat.steps,
        "error": heat.relative_error,
        "converged": heat.converged,
        "reliable": card.maps_hold,
        "moved": list(heat.moved),
        "still": list(heat.still),
        "deletion": {"score": deletion.score, "random_score": deletion.random_score},
    }


def _sample(sample: MemorySample, card: Card, memory_names: Sequence[str] | None) -> dict[str, Any]:
    return {
        "index": sample.index,
        "file": None if memory_names is None else memory_names[sample.index],
        "weight": sample.weight,
        "effect": sample.effect,
        "label": sample.label,
        "label_name": card.class_name(sample.label),
        "prediction": sample.prediction,
        "prediction_name": None if sample.prediction is None else card.class_name(sample.prediction),
        "shares": None if sample.shares is None else sample.shares.tolist(),
    }
