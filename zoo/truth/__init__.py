"""What a posterior is held against: NUTS on the same model, closed forms, simulation."""
