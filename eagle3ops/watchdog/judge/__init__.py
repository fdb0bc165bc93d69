"""In which state is it? Signals from samples, logs and probes, judged without a clock and without I/O."""
