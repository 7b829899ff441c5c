"""Any torch network as a Pyro model."""
