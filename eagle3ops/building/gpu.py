"""Which architecture has the GPU of this machine?"""

from eagle3ops.building.architectures import Arch
from eagle3ops.telemetry.nvml import GpuLost, Nvml, SessionGone


def here() -> Arch | None:
    """Of its first GPU, by the driver; None where there is none, or where the driver does not say."""
    session = Nvml()
    if session.open() is not None:
        return None
    try:
        handle = session.ask("nvmlDeviceGetHandleByIndex", 0)
        found = None if handle is None else session.ask("nvmlDeviceGetCudaComputeCapability", handle)
        return None if found is None else Arch(int(found[0]), int(found[1]))
    except (GpuLost, TypeError, ValueError, IndexError):
        return None
    except SessionGone as error:
        session.forget(error)
        return None
    finally:
        session.close()
