"""Posterior draws, outputs and predictions."""
