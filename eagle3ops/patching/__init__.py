"""Changes to an installed engine's source, as transactions: whole and importable, or not at all; and revertible."""
