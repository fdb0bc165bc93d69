"""Hidden-state shards: format, manifest, writer, reader."""
