"""Checkpoints that lie on a Hub (huggingface.co or another that speaks as it does): read in part, never fetched."""
