"""Reference posteriors: NUTS on the same model, closed forms, simulation-based calibration."""
