"""Robustness of a fit to noise, attacks and deletion of weights."""
