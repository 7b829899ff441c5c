"""Benchmarks of the zoo and of other libraries, measured in the same run."""
