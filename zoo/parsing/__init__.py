"""Reading what users write, without evaluating it."""
