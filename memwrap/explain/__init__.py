"""Why a model predicted what it did: the memory samples behind a prediction, and what each of them changed."""
