"""Inference: the variational objective, the training loop, the posterior predictive."""
