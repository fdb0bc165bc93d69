"""What shows why processes hang? Collected in escalating order before anything is ended, without secrets."""

from eagle3ops.watchdog.evidence.collect import collect
from eagle3ops.watchdog.evidence.dossier import Dossier, Step
from eagle3ops.watchdog.evidence.locks import LockFile, examine
from eagle3ops.watchdog.evidence.stacks import Cluster, Frame

__all__ = ["Cluster", "Dossier", "Frame", "LockFile", "Step", "collect", "examine"]
