"""How does a GPU look busy and do nothing? One thread of one kernel looks at the clock, by the driver's own interface.

Run as a module with `own|foreign FOLDER LEAD`. `own`: the process itself spins. `foreign`: it is a server that holds
memory on the GPU and is idle, while another process spins. libcuda is all it needs. Each kernel ends after a second, so
that whoever is killed leaves nothing behind.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

from eagle3ops.drills.stage import Stage, child, hold, say

_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns)
{
    .reg .u64 %rd<5>;
    .reg .pred %p;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p, %rd4, %rd1;
    @%p bra again;
    ret;
}
"""


class Gpu:
    """GPU 0 of this process, with 256 MB of its memory."""

    held = 256 * 2**20

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", ctypes.byref(device), 0)
        self._do("cuCtxCreate_v2", ctypes.byref(context), 4, device)  # 4: wait for it asleep, not spinning
        self._do("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(self.held))

    def spin(self) -> None:
        """Never returns."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_PTX))
        self._do("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
        ns = ctypes.c_uint64(10**9)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
        while True:
            # Two in the queue, so that there is no gap between them.
            for _ in range(2):
                self._do("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
            self._do("cuCtxSynchronize")

    def _do(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise OSError(f"{name}: CUDA error {code}")


def own(stage: Stage) -> None:
    """A rank that waits on the GPU for a peer."""
    gpu = Gpu()
    stage.load()
    # Healthy first, so that the power of doing nothing is known.
    time.sleep(max(stage.lead, 5.0))
    stage.ready()
    gpu.spin()


def foreign(stage: Stage) -> None:
    """Two processes that have nothing to do with each other, but for the GPU."""

    def server() -> None:
        gpu = Gpu()
        stage.serve()
        time.sleep(max(stage.lead, 5.0))
        os.write(go, b"1")
        stage.ready(gpu_bytes=gpu.held)
        hold()

    may, go = os.pipe()
    child(server)
    os.read(may, 1)
    say("somebody else spins")
    Gpu().spin()


if __name__ == "__main__":
    {"own": own, "foreign": foreign}[sys.argv[1]](Stage(Path(sys.argv[2]), float(sys.argv[3])))
