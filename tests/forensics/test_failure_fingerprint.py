"""Does the same failure keep its name, and another one get another?"""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.forensics.diagnosis import diagnose_files
from eagle3ops.forensics.fingerprint import fingerprint, frame_of, normal

FAILED = """\
{p}Traceback (most recent call last):
{p}  File "/{venv}/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1, in _call_impl
{p}    return forward_call(*args)
{p}  File "/{venv}/lib/python3.12/site-packages/sglang/srt/models/{model}.py", line {line}, in {function}
{p}    x = self.fc(x)
{p}  File "/{venv}/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 125, in forward
{p}torch.OutOfMemoryError: CUDA out of memory. Tried {size} GiB. GPU {rank} of {host}:{port} at 0x7f{line:x}; {path}
"""
SAME = {"p": "[rank3]: ", "venv": "opt/a", "model": "llama", "function": "forward", "line": 88, "size": "7.42",
        "rank": 3, "host": "gpu-a", "port": 41200, "path": "/data/run-7/x.bin"}  # fmt: skip


def of(folder: Path, **changed: object) -> str:
    log = folder / "a.log"
    log.write_text("step 1 loss 3.0\n" + FAILED.format(**SAME | changed))
    root = diagnose_files([log]).root
    assert root is not None
    return root.fingerprint


def test_the_same_of_another_run(tmp_path: Path) -> None:
    first = of(tmp_path)
    for changed in (
        {"p": "[rank0]: ", "rank": 0},
        {"p": "(Worker_TP5 pid=77) ERROR 08-04 10:00:44 [a.py:8] "},
        {"p": "trainer-1  | [rank7]: "},
        {"p": "2026-11-30T04:05:06Z [rank3]: "},
        {"venv": "home/u/miniconda3/envs/x", "line": 1024},
        {"size": "12.10", "host": "box-99.cluster", "port": 29500},
        {"path": "/mnt/other/x.bin"},
    ):
        assert of(tmp_path, **changed) == first, changed


def test_another_failure(tmp_path: Path) -> None:
    known = {of(tmp_path), of(tmp_path, function="load"), of(tmp_path, model="qwen3"), of(tmp_path, path="y.bin")}
    assert len(known) == 4


def test_frames() -> None:
    assert frame_of('  File "/x/site-packages/sglang/srt/a.py", line 3, in f') == "srt/a.py:f"
    assert frame_of('File "/srv/train.py", line 3, in <module>') == "srv/train.py:<module>"
    for below in ("/x/site-packages/torch/a.py", "/usr/lib/python3.12/threading.py", "<frozen runpy>", "<string>"):
        assert frame_of(f'File "{below}", line 3, in f') is None
    assert frame_of("x = 1") is None


def test_no_secret_is_in_a_message() -> None:
    secret = "hf_" + "a1B2c3D4" * 4
    assert secret not in normal(f"no access with {secret}")


@settings(max_examples=50)
@given(st.text(max_size=300), st.lists(st.text(max_size=20), max_size=4))
def test_anything(body: str, frames: list[str]) -> None:
    found = fingerprint(body, "x", frames)
    assert len(found) == 16
    assert int(found, 16) >= 0
    assert fingerprint(body, "x", frames) == found
