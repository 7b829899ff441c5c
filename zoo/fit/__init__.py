"""From a configuration to a fitted posterior: config, build, run, result, store."""
