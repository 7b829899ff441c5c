"""The No-U-Turn sampler on recorded densities."""
