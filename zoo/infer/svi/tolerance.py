"""When a fit counts as converged: the tolerances of training, which diagnostics use as well."""

#: Largest remaining increase of the ELBO, per training row.
NATS_PER_ROW = 0.01
#: The same for the whole data set, if that is larger.
MIN_NATS = 1.0
#: Largest remaining change of outputs, in posterior sds. A 95 % interval that is off by 0.3 sds
#: covers 94.0 %.
OUTPUT_SDS = 0.3


def tolerance_in_nats(rows: int) -> float:
    """Return the tolerance for changes of the ELBO with this many rows."""
    return max(MIN_NATS, NATS_PER_ROW * rows)
