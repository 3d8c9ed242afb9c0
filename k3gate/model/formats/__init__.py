"""Number formats of weights, to float32 and between each other: exact, on whole arrays."""
