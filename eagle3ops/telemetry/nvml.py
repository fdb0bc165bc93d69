"""Does the NVIDIA driver answer, and if not, why not?

One session with NVML. A field that a GPU does not support is None and is not asked for again; a driver that goes away
ends the session (`SessionGone`), a GPU that falls off the bus ends only that GPU (`GpuLost`).
"""

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

REOPEN_AFTER_S = 5.0
"""A driver that is not there is asked for again this often: opening the library is slow and may wake GPUs."""

_REOPEN_SAME_S = 60.0


class Absent(StrEnum):
    """Why there is no GPU to see. None of these is a failure of the product."""

    NO_LIBRARY = "no NVIDIA driver library"
    NOT_LOADED = "NVIDIA driver not loaded"
    MISMATCH = "NVIDIA driver and library have different versions"
    NO_DEVICE = "no NVIDIA GPU"
    NO_PERMISSION = "no permission to use the NVIDIA driver"
    NO_ANSWER = "NVIDIA driver does not answer"

    @property
    def remedy(self) -> str:
        """What a person can do about it."""
        return _REMEDIES[self]


_REMEDIES = {
    Absent.NO_LIBRARY: "where there is a GPU: install the NVIDIA driver, or start the container with its GPUs",
    Absent.NOT_LOADED: "load it (modprobe nvidia); in a container, pass the GPUs through when it is started",
    Absent.MISMATCH: "the driver was updated under a running kernel module: reload the module or reboot",
    Absent.NO_DEVICE: "where there is a GPU: check lspci, and that the container was given it",
    Absent.NO_PERMISSION: "the user needs to read and write /dev/nvidia* (often the group video or render)",
    Absent.NO_ANSWER: "see the kernel log; a container that lost its devices must be started again",
}


class SessionGone(Exception):
    """The driver went away while it was asked; the session has to be opened again."""

    def __init__(self, code: int, words: str) -> None:
        self.code = code
        super().__init__(words)


class GpuLost(Exception):
    """One GPU does not answer any more: `state` is "lost" or "reset required"."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(state)


class Nvml:
    """A session with the driver's library.

    `absent` is None while it is open, else the reason. Not for use by several threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.absent: Absent | None = Absent.NO_LIBRARY
        self.detail = ""
        """The library's own words about `absent`."""
        self.stale = False
        """The library in this process no longer fits the driver: only a new process can load the right one."""
        self.count = 0
        self._was_open = False
        self._open = False
        self._asked_at: float | None = None
        self._unsupported: set[tuple[str, Any]] = set()

    def open(self) -> Absent | None:
        """Open the session unless it is open or was just found absent. Returns `absent`."""
        now = self._clock()
        wait = _REOPEN_SAME_S if self.absent is Absent.NO_LIBRARY else REOPEN_AFTER_S
        if self._open or (self._asked_at is not None and now - self._asked_at < wait):
            return self.absent
        self._asked_at = now
        import pynvml

        try:
            pynvml.nvmlInit()
            self._open = True
            self.count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.close()
            self.absent = _absent(error.value)
            self.detail = str(error)
            self.stale = self._was_open and self.absent is Absent.MISMATCH
            return self.absent
        self._unsupported.clear()
        if self.count == 0:
            self.close()
            self.absent, self.detail = Absent.NO_DEVICE, ""
            return self.absent
        self.absent, self.detail, self._was_open = None, "", True
        return None

    def close(self) -> None:
        """End the session. A driver that has already gone is not an error."""
        if not self._open:
            return
        import pynvml

        self._open = False
        self.absent = self.absent or Absent.NO_ANSWER
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            self.detail = str(error)

    def forget(self, error: SessionGone) -> None:
        """End a session whose driver went away; it is asked for again after a while."""
        self.close()
        self.absent, self.detail = _absent(error.code), str(error)
        self.stale = self.absent is Absent.MISMATCH
        self._asked_at = self._clock()

    def ask(self, function: str, *args: Any, key: Any = None) -> Any:
        """Call `pynvml.<function>(*args)`; None where the GPU, the driver or the user's rights do not allow it.

        `key` names the GPU: what it does not support is not asked for again in this session.

        Raises:
            SessionGone: the driver went away.
            GpuLost: this GPU did.
        """
        if (function, key) in self._unsupported:
            return None
        import pynvml

        try:
            return getattr(pynvml, function)(*args)
        except pynvml.NVMLError as error:
            code = error.value
            if code == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLost("lost") from error
            if code == pynvml.NVML_ERROR_RESET_REQUIRED:
                raise GpuLost("reset required") from error
            if code in _gone_codes():
                raise SessionGone(code, str(error)) from error
            if key is not None and code in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self._unsupported.add((function, key))
            return None
        except (AttributeError, UnicodeDecodeError):
            # A binding older than the function, or a name that is not text.
            self._unsupported.add((function, key))
            return None


def _gone_codes() -> tuple[int, ...]:
    import pynvml

    return (
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )


def _absent(code: int) -> Absent:
    import pynvml

    return {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Absent.NO_LIBRARY,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Absent.NO_LIBRARY,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Absent.NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Absent.MISMATCH,
        pynvml.NVML_ERROR_GPU_NOT_FOUND: Absent.NO_DEVICE,
        pynvml.NVML_ERROR_NO_PERMISSION: Absent.NO_PERMISSION,
    }.get(code, Absent.NO_ANSWER)
