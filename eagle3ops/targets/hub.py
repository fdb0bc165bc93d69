"""How is a model fetched from the model hub?"""

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from eagle3ops.errors import Eagle3opsError
from eagle3ops.targets.store import explained

EMBEDDED_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PROBE_S = 3.0
_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "tiktoken*"]


def endpoint() -> str:
    """Where the hub is."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def offline() -> bool:
    """The user forbade going there."""
    return any(
        os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def reachable(model: str) -> bool:
    """Whether the hub answers for `model` within a few seconds."""
    if offline():
        return False
    request = urllib.request.Request(f"{endpoint()}/api/models/{model}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_PROBE_S):
            return True
    except (urllib.error.URLError, OSError, ValueError):
        return False


def snapshot(
    model: str,
    *,
    revision: str | None,
    trust_remote_code: bool,
    into: Path | None = None,
    info: Callable[[str], None],
) -> Path:
    """Download `model` and return its folder: `into`, or a place in the hub's own cache.

    Args:
        model: `owner/name`.
        revision: branch, tag or commit; None for the default branch.
        trust_remote_code: fetch the model's own Python files as well.
        into: where to put the files.
        info: told what is going on.

    Raises:
        Eagle3opsError: it cannot be reached, does not exist, or is gated; with what to do.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    info(f"fetching {model} from {endpoint()}" if not offline() else f"looking for {model} in the hub's local cache")
    where = f"{model}{f' at {revision}' if revision else ''}"
    with explained(into or Path.home()):
        try:
            return Path(
                snapshot_download(
                    model,
                    revision=revision,
                    endpoint=endpoint(),
                    local_dir=into,
                    allow_patterns=[*_FILES, *(["*.py"] if trust_remote_code else [])],
                    etag_timeout=10,
                    local_files_only=offline(),
                )
            )
        except GatedRepoError as error:
            raise Eagle3opsError(
                f"{where}: access is gated", remedy="accept its licence there and set HF_TOKEN"
            ) from error
        except RevisionNotFoundError as error:
            raise Eagle3opsError(f"{where}: there is no such revision", remedy="check target.revision") from error
        except RepositoryNotFoundError as error:
            raise Eagle3opsError(
                f"{where}: the hub has no such model, or it is private",
                remedy="check target.model; set HF_TOKEN if private",
            ) from error
        except LocalEntryNotFoundError as error:
            why = "the hub is switched off (HF_HUB_OFFLINE)" if offline() else "the hub cannot be reached"
            raise Eagle3opsError(
                f"{where}: {why}, and the model is not in its cache",
                remedy="connect, set HF_ENDPOINT to a mirror, or give a folder as target.model",
            ) from error
        except HfHubHTTPError as error:
            raise Eagle3opsError(f"{where}: the hub answered: {error}", remedy="try again later") from error
