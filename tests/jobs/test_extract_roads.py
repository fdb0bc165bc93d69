"""Who computes hidden states, where do they lie, and is what cannot be refused with reason?"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from eagle3ops.answers import AnswerRow
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.turns import Turn
from eagle3ops.errors import RequestError
from eagle3ops.features import FeatureReader, FeatureRow
from eagle3ops.features.format import NoSoundRow
from eagle3ops.jobs.extract.quota import check_memory
from eagle3ops.jobs.extract.road import choose_road
from eagle3ops.jobs.extract.shards import extract_split
from eagle3ops.jobs.extract.spec import ExtractSpec
from eagle3ops.jobs.train.turns import COMPLETE, clear, parts_folder, turn_folder
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.planning import plan_stages
from eagle3ops.spec.load import parse_pipeline
from eagle3ops.spec.models import EngineSpec
from eagle3ops.targets.tiny import make_tiny

SGLANG = EngineSpec(name="sglang")
LAYERS = AuxLayers((1, 2), 4)


def test_the_engine_computes_where_it_can_and_the_reason_is_told() -> None:
    assert choose_road(ExtractSpec(), SGLANG, LAYERS)[0] == "engine"
    assert choose_road(ExtractSpec(), SGLANG, None)[0] == "engine"
    road, said = choose_road(ExtractSpec(), SGLANG, AuxLayers((0, 2), 4))
    assert road == "reference"
    assert "boundaries 1 to 3 only" in said
    assert choose_road(ExtractSpec(), EngineSpec(), LAYERS) == ("reference", "states from the reference model")
    road, said = choose_road(ExtractSpec(), EngineSpec(name="vllm"), LAYERS)
    assert road == "reference"
    assert "engine vllm" in said
    assert choose_road(ExtractSpec(through="reference"), SGLANG, LAYERS)[0] == "reference"


@pytest.mark.parametrize(("engine", "layers"), [(EngineSpec(name="vllm"), LAYERS), (SGLANG, AuxLayers((2, 4), 4))])
def test_an_engine_that_cannot_is_refused_where_it_was_asked_for(engine: EngineSpec, layers: AuxLayers) -> None:
    with pytest.raises(RequestError, match=r"stages\.extract\.through"):
        choose_road(ExtractSpec(through="engine"), engine, layers)


def test_a_plan_refuses_the_engine_that_is_missing_where_it_computes(tmp_path: Path) -> None:
    registry, model = load_registry(), tmp_path / "model"
    model.mkdir()
    make_tiny(model)

    def refused(road: str, quota: str = "") -> list[str]:
        text = (
            f"schema: 1\nname: x\ntarget: {{model: {model}}}\nengine: {{name: sglang, python: {tmp_path}/none}}\n"
            f"stages: {{extract: {{through: {road}{quota}}}}}\n"
        )
        planned = plan_stages(parse_pipeline(text, "x", registry.specs()), registry, tmp_path / "r", tmp_path / "c")
        return [one.name for one in planned if one.plan.refusal is not None]

    found = refused("engine")
    assert "extract" in found
    assert "train" not in found
    assert "train" in refused("engine", ", quota: 30MiB"), "where they take turns, training starts it, too"
    found = refused("reference")
    assert "generate" in found
    assert "extract" not in found


def test_memory_needs_a_bound_and_room(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="needs a quota"):
        ExtractSpec(place="memory")
    check_memory(1, tmp_path)
    with pytest.raises(RequestError, match="are free in"):
        check_memory(1 << 60, tmp_path)
    with pytest.raises(RequestError, match="No such file"):
        check_memory(1, tmp_path / "nowhere")
    assert parts_folder(tmp_path, in_memory=False) == tmp_path
    assert parts_folder(tmp_path, in_memory=True).parent == Path("/dev/shm")
    assert parts_folder(tmp_path, in_memory=True) != parts_folder(tmp_path / "other", in_memory=True)


def test_a_part_with_the_rows_of_the_one_before_is_not_extracted_again(tmp_path: Path) -> None:
    first = Turn(number=0, epoch=0, part=0, parts=1, first=0, last=3, rows=(0, 1), tokens=9, bytes=9)
    again = replace(first, number=1, epoch=1, first=3, last=6)
    other = replace(again, number=2, rows=(0, 2))
    turns = [first, again, other]
    folder = turn_folder(tmp_path, first)
    folder.mkdir()
    # Half a part is nobody's.
    clear(tmp_path, tmp_path, again, turns)
    assert not list(tmp_path.glob("turn-*"))
    folder.mkdir()
    (folder / COMPLETE).touch()
    clear(tmp_path, tmp_path, again, turns)
    assert [path.name for path in tmp_path.glob("turn-*")] == ["turn-00001"]
    clear(tmp_path, tmp_path, other, turns)
    assert not list(tmp_path.glob("turn-*"))


def answers(count: int) -> list[AnswerRow]:
    return [
        AnswerRow(id=str(k), split="train", messages=[], prompt_ids=[1, 2], output_ids=[3] * (k + 1), finish_reason="x")
        for k in range(count)
    ]


class Made:
    """A source whose rows are made up."""

    layers, hidden_size = LAYERS, 4

    def __init__(self, workers: int, bad: str | None = None) -> None:
        self.workers, self._bad = workers, bad
        self.asked: list[str] = []
        self.writers: set[int] = set()

    def shards(self, chunks: Iterable[Sequence[AnswerRow]]) -> Iterator[Sequence[FeatureRow]]:
        for chunk in chunks:
            self.asked += [row.id for row in chunk]
            yield [self._row(row) for row in chunk]

    def _row(self, row: AnswerRow) -> FeatureRow:
        tokens = len(row.prompt_ids) + len(row.output_ids)
        ids = torch.tensor(row.prompt_ids + row.output_ids, dtype=torch.int32)
        value = float("nan") if row.id == self._bad else float(row.id) + 1
        states = torch.full((tokens, 12), value, dtype=torch.bfloat16)
        return FeatureRow(row.id, ids, torch.arange(tokens) > 1, states[:, :8], states[:, 8:])


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
def test_shards_are_the_same_however_many_write_them(workers: int, dtype: str, tmp_path: Path) -> None:
    spec = ExtractSpec.model_validate({"rows_per_shard": 2, "dtype": dtype, "keep": "needed"})
    rows = answers(11)
    done: list[int] = []
    threads = threading.active_count()

    def write(source: Made) -> None:
        extract_split(
            source, rows, tmp_path, spec, fingerprint="f", advance=done.append, warn=lambda text: pytest.fail(text)
        )

    write(Made(workers))
    assert sum(done) == sum(2 + k + 1 for k in range(11))
    reader = FeatureReader(tmp_path)
    assert reader.verify() == []
    found = list(reader.rows())
    assert [row.id for row in found] == [row.id for row in rows]
    assert [float(row.aux[0, 0]) for row in found] == pytest.approx([k + 1 for k in range(11)], rel=0.01)
    assert threading.active_count() == threads
    # What is lost is made again, and nothing else.
    (tmp_path / "00002.safetensors").unlink()
    again = Made(workers)
    extract_split(again, rows, tmp_path, spec, fingerprint="f", advance=done.append, warn=lambda text: None)
    assert again.asked == ["4", "5"]
    assert [row.id for row in FeatureReader(tmp_path).rows()] == [row.id for row in rows]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_without_a_sound_row_ends_it_or_is_left_out(workers: int, tmp_path: Path) -> None:
    spec, rows = ExtractSpec(rows_per_shard=1), answers(4)
    with pytest.raises(NoSoundRow, match="NaN in aux"):
        extract_split(
            Made(workers, "1"), rows, tmp_path / "a", spec, fingerprint="f", advance=lambda n: None, warn=lambda t: None
        )
    said: list[str] = []
    extract_split(
        Made(workers, "1"), rows, tmp_path / "b", spec, fingerprint="f", advance=lambda n: None, warn=said.append,
        skip_unsound=True,
    )  # fmt: skip
    assert [row.id for row in FeatureReader(tmp_path / "b").rows()] == ["0", "2", "3"]
    assert "NaN in aux" in said[0]
