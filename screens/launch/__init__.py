"""The room in which a pipeline file is filled in and started."""
