"""Which pipeline files come with eagle3ops?"""

from importlib import resources
from typing import Any


def bundled() -> dict[str, Any]:
    """The pipeline files that come with eagle3ops, by name."""
    folder = resources.files("eagle3ops.assets.pipelines")
    return {item.name.removesuffix(".yaml"): item for item in folder.iterdir() if item.name.endswith(".yaml")}
