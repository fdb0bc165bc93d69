"""The algorithm: drafter, training-time test, losses, vocabulary map, decoding."""
