"""Pruning and quantization of weights based on the posterior."""
