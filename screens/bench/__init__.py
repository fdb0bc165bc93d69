"""The room of benchmarks and promotion."""
