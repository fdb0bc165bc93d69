"""What did a run find out, in one file? Gathered from the outputs of all stages, further loads and sweeps."""
