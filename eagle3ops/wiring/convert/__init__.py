"""A drafter's checkpoint in another engine's form: other names, other numbers, the same bytes."""
