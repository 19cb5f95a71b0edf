"""Five inputs worked out by hand, and random memories."""

from hypothesis import strategies as st
from torch import Tensor, tensor

CLASSES = 5

# Five inputs, four memory samples, three classes. Input 1 has two equally strong samples; inputs 2 and 3 are wrong.
WEIGHTS = tensor(
    [
        [0.6, 0.4, 0.0, 0.0],
        [0.5, 0.5, 0.0, 0.0],
        [0.0, 0.2, 0.5, 0.3],
        [0.0, 0.0, 0.0, 1.0],
        [0.1, 0.2, 0.3, 0.4],
    ]
)
MEMORY_PREDICTIONS = tensor([0, 1, 2, 1])
PREDICTIONS = tensor([0, 1, 1, 1, 1])
LABELS = tensor([0, 1, 2, 0, 1])

class_numbers = st.integers(0, CLASSES - 1)


@st.composite
def memories(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Weights (B, M) in eighths, so that votes and sums are often tied, and memory predictions (M,)."""
    samples = draw(st.integers(1, 9))
    row = st.lists(st.integers(0, 3), min_size=samples, max_size=samples).filter(any)
    weights = draw(st.lists(row, min_size=1, max_size=6))
    return tensor(weights) / 8, tensor(draw(st.lists(class_numbers, min_size=samples, max_size=samples)))
