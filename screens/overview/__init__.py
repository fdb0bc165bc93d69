"""The overview: the whole pipeline and the whole host."""
