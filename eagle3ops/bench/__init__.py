"""Load, accept statistics, comparisons, reports."""
