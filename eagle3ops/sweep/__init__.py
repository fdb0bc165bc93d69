"""Which setting of speculative decoding is the best on this machine? Many points, each paired with its baseline."""
