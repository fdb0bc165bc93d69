"""Which setting is the best here? What `stages.sweep` may say, and the job that races the points."""
