"""One file per method: a file dropped in here is a method of the zoo, without another edit."""
