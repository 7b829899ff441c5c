"""Benchmarks: what the zoo reaches, beside what others reach in the same run."""
