"""The pipeline file: models, loading with line numbers, overrides, forecasts."""
