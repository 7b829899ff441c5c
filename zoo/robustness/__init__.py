"""How a fit bears noise, attacks and deletion of weights."""
