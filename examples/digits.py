"""Learn scikit-learn's 8x8 digits in a few seconds on a CPU, and show the memory images behind each prediction."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy

import memwrap

TRAINING_IMAGES = 300
MEMORY_SIZE = 100
EPOCHS = 40
BATCH_SIZE = 50
SHOWN = 6  # inputs, two of them misclassified
COLUMNS = 3  # memory images shown for each input
SHADES = " .:-=+*#%@"


def digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8), normalized, and labels (1797,), in random order."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)
    order = torch.randperm(len(images))
    return ((images - images.mean()) / images.std())[order], torch.tensor(labels)[order]


def train(model: memwrap.MemoryClassifier, images: Tensor, labels: Tensor) -> None:
    """A plain training loop, with a new random memory in every step as in the paper."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = EPOCHS * (len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH_SIZE):
            memory = torch.randperm(len(images))[:MEMORY_SIZE]
            loss = cross_entropy(model(images[batch], memory=images[memory]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def picture(image: Tensor) -> list[str]:
    """image (1, 8, 8) -> eight lines of text"""
    levels = ((image[0] - image.min()) / (image.max() - image.min()) * (len(SHADES) - 1)).round().int()
    return ["".join(2 * SHADES[level] for level in row) for row in levels.tolist()]


def show(model: memwrap.MemoryClassifier, images: Tensor, labels: Tensor) -> None:
    """Print each image next to the memory images with the largest weights."""
    memory = model.remembered
    assert memory is not None
    assert memory.predictions is not None
    with torch.no_grad():
        reading = model.read(images)
    for image, label, logits, weights in zip(images, labels, reading.logits, reading.weights, strict=True):
        prediction = int(logits.argmax())
        probability = float(logits.softmax(dim=0)[prediction])
        top = weights.topk(COLUMNS)
        others = int((weights > 0).sum()) - COLUMNS
        verdict = "correct" if prediction == label else f"wrong, it is a {label}"
        print(f"\npredicted {prediction} ({probability:.0%}): {verdict}")
        top_prediction = int(memory.predictions[top.indices[0]])
        if top_prediction != prediction:
            print(f"uncertain: the model predicts {top_prediction} for the memory image with the largest weight")
        columns = [picture(image), *(picture(memory.images[index]) for index in top.indices)]
        for row in zip(*columns, strict=True):
            print("   ".join(row).rstrip())
        captions = [
            f"{weight:.0%}: a {memory.labels[index]}, predicted as {memory.predictions[index]}"
            if memory.labels[index] != memory.predictions[index]
            else f"{weight:.0%}: a {memory.labels[index]}"
            for weight, index in zip(top.values, top.indices, strict=True)
        ]
        print("   ".join(f"{caption:16}" for caption in ["the image", *captions]).rstrip())
        if others > 0:
            print(f"and {others} more memory images with {1 - float(top.values.sum()):.0%} together")


def main() -> None:
    torch.manual_seed(0)
    images, labels = digits()
    training, test = slice(TRAINING_IMAGES), slice(TRAINING_IMAGES, None)
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=10, channels=1))
    print(f"training on {TRAINING_IMAGES} digits ...")
    train(model, images[training], labels[training])
    model.remember(images[training][:MEMORY_SIZE], labels[training][:MEMORY_SIZE])
    with torch.no_grad():
        predictions = model(images[test]).argmax(dim=1)
    accuracy = (predictions == labels[test]).float().mean()
    print(f"accuracy on {len(predictions)} other digits, with a memory of {MEMORY_SIZE}: {accuracy:.1%}")
    wrong = (predictions != labels[test]).nonzero().flatten()
    right = (predictions == labels[test]).nonzero().flatten()
    chosen = torch.cat([right[: SHOWN - 2], wrong[:2]])
    print("\nEach image, then the memory images with the largest weights, with weight and label:")
    show(model, images[test][chosen], labels[test][chosen])


if __name__ == "__main__":
    main()
