"""What a posterior says can be removed or rounded."""
