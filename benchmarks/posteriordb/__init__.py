"""Posteriors of posteriordb: ours beside reference draws that were made by others.

Magnusson et al. (2025), *posteriordb: Testing, Benchmarking and Developing Bayesian Inference
Algorithms*. Run ``python -m benchmarks.posteriordb``.
"""
