"""Recipes of changes to engines that lack something; see `eagle3ops.patching.recipe`."""
