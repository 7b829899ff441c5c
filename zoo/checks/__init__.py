"""The checks of the contract; `zoo.testing` runs them."""
