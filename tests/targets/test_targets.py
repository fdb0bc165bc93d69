"""A target is whole, is what it was, and says which one it is; whatever is wrong with it is named."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.targets import TINY, TargetInfo, changed_since, read_target_info, resolve, write_target_info
from eagle3ops.targets.info import check_safetensors, describe
from eagle3ops.targets.store import MARKER, ModelStore, require_space


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny(cache: Path) -> TargetInfo:
    return resolve(TINY, cache)


@pytest.fixture
def own(tmp_path: Path, tiny: TargetInfo) -> Path:
    """A folder of the user's with a model in it."""
    folder = tmp_path / "own"
    folder.mkdir()
    for stamp in tiny.files:
        (folder / stamp.name).write_bytes((tiny.path / stamp.name).read_bytes())
    return folder


def test_the_tiny_target_is_the_same_everywhere(tiny: TargetInfo, tmp_path: Path) -> None:
    again = resolve(TINY, tmp_path)
    assert again.path != tiny.path
    assert again.fingerprint == tiny.fingerprint
    assert (tiny.num_layers, tiny.hidden_size, tiny.vocab_size, tiny.source) == (8, 64, 512, "made")


def test_a_second_look_builds_nothing(tiny: TargetInfo, cache: Path) -> None:
    before = (tiny.path / "model.safetensors").stat().st_mtime_ns
    said: list[str] = []
    assert resolve(TINY, cache, info=said.append) == tiny
    assert (tiny.path / "model.safetensors").stat().st_mtime_ns == before
    assert said == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: os.truncate(folder / "model.safetensors", 1000), "model.safetensors: damaged"),
        (lambda folder: flip(folder / "model.safetensors"), "model.safetensors: damaged"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: missing"),
        (lambda folder: (folder / MARKER).unlink(), "its list of hashes is missing or damaged"),
        (lambda folder: (folder / MARKER).write_text("{"), "its list of hashes is missing or damaged"),
        (lambda folder: (folder / "vocab.json").write_text("{}"), "holds files that were not stored"),
    ],
)
def test_a_damaged_cache_is_named_and_built_again(
    tmp_path: Path, tiny: TargetInfo, spoil: Callable[[Path], None], named: str
) -> None:
    made = resolve(TINY, tmp_path)
    spoil(made.path)
    said: list[str] = []
    assert resolve(TINY, tmp_path, info=said.append).fingerprint == tiny.fingerprint
    assert len(said) == 1
    assert named in said[0]
    assert "built again" in said[0]


def test_a_build_that_fails_or_was_killed_leaves_nothing_behind(tmp_path: Path, tiny: TargetInfo) -> None:
    store = ModelStore(tmp_path)
    store.folder.mkdir()
    left = store.folder / ".tiny.999999.tmp"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")

    def fails(folder: Path) -> None:
        assert not left.exists()
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device", str(folder / "model.safetensors"))

    with (
        pytest.raises(Eagle3opsError, match=r"model\.safetensors: no space left on the disk"),
        store.locked("tiny", print),
    ):
        store.build("tiny", "tiny", "made", fails, progress=lambda done, total, unit: None)
    assert [path.name for path in store.folder.iterdir()] == [".tiny.lock"]


def test_two_at_once_build_once(tmp_path: Path) -> None:
    said: list[str] = []
    found: list[TargetInfo] = []
    threads = [
        threading.Thread(target=lambda: found.append(resolve(TINY, tmp_path, info=said.append))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert found[0] == found[1] == found[2]
    assert len(list((tmp_path / "targets").glob("tiny*"))) == 1


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(Eagle3opsError, match="a file stands where a folder is needed"):
        resolve(TINY, blocked)


def test_too_little_space_is_refused_before_the_download(tmp_path: Path) -> None:
    with pytest.raises(Eagle3opsError, match="are needed to fetch the target"):
        require_space(tmp_path, 1 << 62)


def test_a_folder_of_ones_own(own: Path, tiny: TargetInfo, tmp_path: Path) -> None:
    found = resolve(str(own), tmp_path / "cache")
    assert (found.path, found.name, found.source) == (own, "own", "folder")
    assert found.fingerprint == tiny.fingerprint
    flip(own / "model.safetensors")
    assert resolve(str(own), tmp_path / "cache").fingerprint != tiny.fingerprint


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json: missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: damaged"),
        (lambda folder: edit_config(folder, num_hidden_layers="eight"), "num_hidden_layers is 'eight'"),
        (lambda folder: edit_config(folder, hidden_size=True), "hidden_size is True"),
        (lambda folder: os.truncate(folder / "model.safetensors", 400_000), "model.safetensors: torn"),
        (lambda folder: os.truncate(folder / "model.safetensors", 4), "its header is cut off"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\x05" + b"\0" * 7 + b"[1,2]"),
            "header is damaged",
        ),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickled weights"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-00002-of-00002.safetensors"}}'
            ),
            "model-00002-of-00002.safetensors: missing, but named by",
        ),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), "it has no weight_map"),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "holds no tokenizer"),
    ],
)
def test_a_folder_that_is_no_model_is_named(
    own: Path, tmp_path: Path, spoil: Callable[[Path], None], named: str
) -> None:
    spoil(own)
    with pytest.raises(Eagle3opsError) as caught:
        resolve(str(own), tmp_path / "cache")
    assert named in str(caught.value)


def test_a_multimodal_config_is_read_by_its_text_part(own: Path, tmp_path: Path) -> None:
    inner = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({"text_config": inner, "vision_config": {"hidden_size": 9}}))
    assert resolve(str(own), tmp_path / "cache").hidden_size == 64


@pytest.mark.parametrize("name", ["smollm", "a/b/c", "../gone", "/no/such/folder", "~nobody/x", "", "a b/c"])
def test_what_names_nothing_is_a_wrong_request(name: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="built in are"):
        resolve(name, tmp_path)


def test_a_revision_is_for_the_hub_only(own: Path, tmp_path: Path) -> None:
    for model in (TINY, str(own)):
        with pytest.raises(RequestError, match=r"remove target\.revision"):
            resolve(model, tmp_path, revision="main")


def test_changes_after_the_fetch_are_seen(own: Path, tmp_path: Path) -> None:
    info = describe(own, "own", "folder")
    write_target_info(tmp_path, info)
    assert read_target_info(tmp_path) == info
    assert changed_since(info) is None
    os.utime(own / "model.safetensors")
    assert changed_since(info) is None, "touched, but the same bytes"
    (own / "added_tokens.json").write_text("{}")
    assert "added_tokens.json: was not there" in str(changed_since(info))
    (own / "added_tokens.json").unlink()
    flip(own / "model.safetensors")
    assert "model.safetensors: its content has changed" in str(changed_since(info))
    os.truncate(own / "model.safetensors", 10)
    assert "10 bytes" in str(changed_since(info))
    (own / "model.safetensors").unlink()
    assert "No such file" in str(changed_since(info))


@given(st.binary(max_size=60) | st.just(b"\x10" + b"\0" * 7 + b'{"a":{"data_offs'))
def test_any_bytes_are_weights_or_a_named_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(Eagle3opsError, match=r"model\.safetensors: "):
        check_safetensors(path)


@given(st.integers(min_value=0))
def test_weights_cut_off_anywhere_are_found(
    tmp_path_factory: pytest.TempPathFactory, tiny_weights: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "model.safetensors"
    path.write_bytes(tiny_weights[: at % len(tiny_weights)])
    with pytest.raises(Eagle3opsError, match=r"cut off|torn"):
        check_safetensors(path)


@pytest.fixture(scope="module")
def tiny_weights(cache: Path) -> bytes:
    return (resolve(TINY, cache).path / "model.safetensors").read_bytes()


@given(
    st.binary(max_size=80)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
        lambda value: json.dumps({"path": value, "files": value, "num_layers": value}).encode()
    )
)
def test_any_target_file_is_read_or_named(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("info")
    (folder / "target.json").write_bytes(data)
    with pytest.raises(Eagle3opsError, match=r"target\.json: damaged"):
        read_target_info(folder)
