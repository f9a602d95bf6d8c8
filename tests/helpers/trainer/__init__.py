"""What several tests of the trainer share: small worlds, small runs, processes."""
