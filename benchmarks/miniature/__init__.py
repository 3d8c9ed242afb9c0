"""A miniature Kimi K3 for tests and benchmarks: its shape, random weights, float64 arithmetic, and a GGUF of it."""
