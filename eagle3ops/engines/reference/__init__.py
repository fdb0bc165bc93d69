"""The reference engine: ours, in torch; the embedded default and the oracle for all others."""
