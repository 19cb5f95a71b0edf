"""A contrastive loss on the similarities that attention uses: images of a class alike, others unlike."""

import torch
from torch import Tensor, nn

from memwrap.nn.precision import to_full_precision
from memwrap.nn.queue import Queue
from memwrap.nn.reading import MemoryLayer
from memwrap.nn.similarity import CosineSimilarity

SCALE = 10.0  # of the cosines, before their softmax
_COSINE = CosineSimilarity(SCALE)


def contrastive_loss(layer: nn.Module | None, encodings: Tensor, labels: Tensor, queue: Queue | None = None) -> Tensor:
    """The supervised contrastive loss (Khosla et al. 2020, L_out) of what a last layer compares: (), float32

    encodings (B, D), labels (B,); layer: whose projection is used, if it has one. Each input is compared with all
    others of the batch, and with those of a queue. Inputs that are alone in their class do not count.
    """
    compare = layer.compared if isinstance(layer, MemoryLayer) else lambda given: given
    encodings = to_full_precision(encodings)
    vectors = _COSINE.vectors(compare(encodings))
    scores, keys = _COSINE.scores(vectors, vectors), labels
    known = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)  # none is compared with itself
    if queue is not None:
        earlier = _COSINE.vectors(compare(queue.encodings.to(encodings.dtype)))
        scores = torch.cat([scores, _COSINE.scores(vectors, earlier)], dim=1)
        keys = torch.cat([keys, queue.labels])
        known = torch.cat([known, queue.filled.expand(len(labels), -1)], dim=1)
    alike = (known & (labels.unsqueeze(1) == keys)).to(scores.dtype)
    # Finite, as the gradient would be NaN where no other is known.
    log_shares = scores - scores.masked_fill(~known, torch.finfo(scores.dtype).min).logsumexp(1, keepdim=True)
    counts = alike.sum(1)
    losses = -(alike * log_shares).sum(1) / counts.clamp(min=1)
    return losses.sum() / (counts > 0).sum().clamp(min=1)
