"""The networks of several runs as one: weights are stacked along a new first axis, images along the batch axis."""
