"""Is what an engine supports told as the engine itself would tell it, from its source alone?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_engines import ALL, SGLANG, VLLM, write_tree

from eagle3ops import cli
from eagle3ops.errors import RequestError
from eagle3ops.wiring.supports import Platform, Support, open_source, supports, supports_all
from eagle3ops.wiring.supports.tree import LARGEST
from eagle3ops.wiring.supports.values import ClassValue


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site-packages")
    write_tree(folder, "vllm")
    return write_tree(folder, "sglang")


def ask(site: Path, engine: str, architecture: str, platform: Platform = "cuda") -> Support:
    return supports(open_source(engine, str(site), platform), architecture)


@pytest.mark.parametrize(
    ("architecture", "supported", "wiring", "how"),
    [
        (
            "LlamaForCausalLM",
            "yes",
            "ok",
            "derives from SupportsEagle3: its default sets the layers on self.model -> LlamaModel",
        ),
        ("LlamaModel", "yes", "ok", "-> LlamaModel"),
        ("PhiForCausalLM", "yes", "broken", "-> PhiModel"),
        ("DeepseekForCausalLM", "yes", "ok", "own method: sets the layers on self.model -> DeepseekModel"),
        ("DeepseekV3ForCausalLM", "yes", "ok", "inherited from DeepseekForCausalLM: sets the layers on self.model"),
        ("SplitForCausalLM", "yes", "ok", "derives from"),
        ("LazyForCausalLM", "yes", "ok", "derives from"),
        ("OtherForCausalLM", "no", None, None),
        (
            "StructuralForCausalLM",
            "yes",
            "ok",
            "structural protocol: has its 4 members without deriving from it; delegates",
        ),
        ("HalfForCausalLM", "no", None, None),
        ("OddForCausalLM", "unknown", None, None),
        ("GoneForCausalLM", "unknown", None, None),
        ("NoSuchForCausalLM", "unknown", None, None),
        ("KimiForConditionalGeneration", "yes", "ok", "delegates to language_model -> DeepseekV3ForCausalLM"),
        ("OldForConditionalGeneration", "no", None, None),
        ("AnyForConditionalGeneration", "yes", "unknown", "self.language_model.model"),
        ("MarkedForConditionalGeneration", "yes", "ok", "through self.decoder -> LlamaForCausalLM -> LlamaModel"),
        ("BrokenForConditionalGeneration", "yes", "broken", "-> PhiForCausalLM -> PhiModel"),
        ("EagleLlama", "yes", None, "derives from"),
    ],
)
def test_vllm(site: Path, architecture: str, supported: str, wiring: str | None, how: str | None) -> None:
    found = ask(site, "vllm", architecture)
    assert (found.supported, found.wiring, found.version) == (supported, wiring, "0.99.1")
    assert how is None or (found.how is not None and how in found.how)
    assert found.notes or found.wiring == "ok"


def test_what_vllm_lacks_is_named_and_what_to_do(site: Path) -> None:
    outer = " ".join(ask(site, "vllm", "OldForConditionalGeneration").notes)
    assert "the outer class lacks it although the inner has it: self.text -> DeepseekForCausalLM (vllm/" in outer
    assert "let OldForConditionalGeneration derive from SupportsEagle3" in outer
    assert "lacks get_eagle3_default" in " ".join(ask(site, "vllm", "HalfForCausalLM").notes)
    broken = " ".join(ask(site, "vllm", "BrokenForConditionalGeneration").notes)
    assert "PhiModel (vllm/model_executor/models/llama.py:18) is no EagleModelMixin" in broken
    assert "let PhiModel derive from EagleModelMixin" in broken
    stale = ask(site, "vllm", "DeepseekV3ForCausalLM")
    assert stale.where == "vllm/model_executor/models/deepseek.py:15"
    assert "stale: get_eagle3_aux_hidden_state_layers (vllm/model_executor/models/deepseek.py:17)" in stale.notes[0]
    assert "config.text_config" in ask(site, "vllm", "AnyForConditionalGeneration").notes[0]
    assert "make_base('at run time')" in ask(site, "vllm", "OddForCausalLM").notes[0]
    assert "drafter" in ask(site, "vllm", "EagleLlama").notes[0]


def test_platforms(site: Path) -> None:
    found = {
        platform: [ask(site, "vllm", each, platform).supported for each in ("SplitForCausalLM", "LazyForCausalLM")]
        for platform in ("cuda", "cpu", "rocm", "xpu")
    }
    assert found == {"cuda": ["yes", "yes"], "cpu": ["yes", "yes"], "rocm": ["no", "yes"], "xpu": ["yes", "unknown"]}
    assert ask(site, "vllm", "SplitForCausalLM", "rocm").file == "vllm/models/split/amd.py"


@pytest.mark.parametrize(
    ("architecture", "supported", "wiring", "how"),
    [
        ("LlamaForCausalLM", "yes", "ok", "own method: sets the layers on self.model -> LlamaModel"),
        ("PhiForCausalLM", "yes", "ok", "inherited from LlamaForCausalLM: sets the layers on self.model -> LlamaModel"),
        ("Renamed", "yes", "ok", "inherited from LlamaForCausalLM"),
        ("PlainForCausalLM", "yes", "broken", "-> PlainModel"),
        ("NothingForCausalLM", "no", None, None),
        ("KimiForConditionalGeneration", "yes", "ok", "delegates to language_model -> LlamaForCausalLM"),
        ("SilentForConditionalGeneration", "yes", "broken", "delegates to language_model -> NothingForCausalLM"),
        ("OuterForConditionalGeneration", "no", None, None),
        ("ChoiceForConditionalGeneration", "yes", "broken", "delegates to model -> NothingForCausalLM"),
        ("ChosenForConditionalGeneration", "yes", "ok", "delegates to model -> LlamaForCausalLM"),
        ("PlacedForConditionalGeneration", "yes", "ok", "delegates to model -> LlamaForCausalLM"),
        ("MarkedForCausalLM", "yes", "broken", "-> MarkedModel"),
        ("UnsharedForCausalLM", "yes", "broken", "delegates to language_model"),
        ("LlamaForCausalLMEagle3", "yes", None, "inherited from"),
    ],
)
def test_sglang(site: Path, architecture: str, supported: str, wiring: str | None, how: str | None) -> None:
    found = ask(site, "sglang", architecture)
    assert (found.supported, found.wiring, found.version) == (supported, wiring, "0.98.0")
    assert how is None or (found.how is not None and how in found.how)


def test_what_sglang_lacks_is_named_and_what_to_do(site: Path) -> None:
    silent = " ".join(ask(site, "sglang", "SilentForConditionalGeneration").notes)
    assert "does nothing without a word" in silent
    outer = " ".join(ask(site, "sglang", "OuterForConditionalGeneration").notes)
    assert "the outer class lacks it although the inner has it: self.language_model -> LlamaForCausalLM" in outer
    assert "AttributeError" in outer
    assert "get_embed_and_head" in outer
    assert "AttributeError" in " ".join(ask(site, "sglang", "ChoiceForConditionalGeneration").notes)
    assert "has no get_embed_and_head" in " ".join(ask(site, "sglang", "UnsharedForCausalLM").notes)
    assert "let the forward of PlainModel append" in " ".join(ask(site, "sglang", "NothingForCausalLM").notes)


def test_a_torn_file_costs_only_what_is_in_it(site: Path) -> None:
    found = {each.architecture: each for each in supports_all(open_source("sglang", str(site)))}
    assert [name for name, each in found.items() if each.supported == "unknown"] == ["TornForCausalLM"]
    assert found["TornForCausalLM"].notes == ("sglang/srt/models/torn.py is no Python: line 1: invalid syntax",)
    assert len(found) == 15


def test_where_the_engine_may_be(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    (venv / "lib/python3.12").mkdir(parents=True)
    (venv / "lib/python3.12/site-packages").symlink_to(site)
    for path in (site, site / "vllm", venv):
        assert open_source("VLLM", str(path)).tree.version == "0.99.1"
    monkeypatch.syspath_prepend(str(site))
    assert open_source("sglang").tree.folder == site / "sglang"
    assert "sglang" not in sys.modules  # found, not imported
    wrong: list[tuple[str, str | None]] = [
        ("tgi", None),
        ("vllm", str(tmp_path)),
        ("vllm", str(site / "vllm/_version.py")),
        ("vllm", "\0"),
    ]
    for engine, place in wrong:
        with pytest.raises(RequestError):
            open_source(engine, place)


def test_the_version_may_stand_in_the_metadata_alone(tmp_path: Path) -> None:
    write_tree(tmp_path, "vllm", {name: text for name, text in VLLM.items() if name != "_version.py"})
    assert open_source("vllm", str(tmp_path)).tree.version is None
    (tmp_path / "vllm-0.97.dist-info").mkdir()
    (tmp_path / "vllm-0.97.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.97\n")
    assert open_source("vllm", str(tmp_path)).tree.version == "0.97"


def test_an_engine_from_before_eagle3(tmp_path: Path) -> None:
    old = {**VLLM, "model_executor/models/interfaces.py": "class SupportsLoRA: ...\n"}
    write_tree(tmp_path, "vllm", old)
    found = ask(tmp_path, "vllm", "HalfForCausalLM")
    assert found.supported == "no"
    assert "before EAGLE-3" in found.notes[0]
    (tmp_path / "vllm/model_executor/models/interfaces.py").unlink()
    assert ask(tmp_path, "vllm", "HalfForCausalLM").supported == "unknown"


def test_a_protocol_whose_method_does_nothing(tmp_path: Path) -> None:
    name = "model_executor/models/interfaces.py"
    lines = [each for each in VLLM[name].split("\n") if "holder" not in each]
    old = "\n".join(lines).replace("get_eagle3_default_aux", "get_eagle3_aux").replace("_set_aux", "_old_set_aux")
    write_tree(tmp_path, "vllm", {**VLLM, name: old})
    found = ask(tmp_path, "vllm", "LlamaForCausalLM")
    assert (found.supported, found.wiring) == ("yes", "broken")
    assert "does nothing in this version" in found.notes[0]
    current = ask(tmp_path, "vllm", "DeepseekV3ForCausalLM")
    assert (current.wiring, current.notes) == ("ok", ())  # the old name is the one that this version calls


def test_odd_files(tmp_path: Path) -> None:
    write_tree(tmp_path, "vllm")
    llama = tmp_path / "vllm/model_executor/models/llama.py"
    llama.unlink()
    os.mkfifo(llama)
    assert ask(tmp_path, "vllm", "LlamaForCausalLM").supported == "unknown"
    llama.unlink()
    with llama.open("wb") as file:
        file.truncate(LARGEST + 1)
    assert "cannot be read" in " ".join(ask(tmp_path, "vllm", "LlamaForCausalLM").notes)
    for text in (
        b"\0\0",
        b"\xff\xfe",
        b"(" * 5000,
        b"x = " + b"-" * 100_000 + b"1",
        b"class LlamaForCausalLM(LlamaForCausalLM): ...",
    ):
        llama.write_bytes(text)
        assert ask(tmp_path, "vllm", "LlamaForCausalLM").supported in ("unknown", "no")


def test_knots_come_to_an_end(tmp_path: Path) -> None:
    chain = "\n".join(f"def f{at}(x):\n    return f{at + 1}(f{at + 1}(x))" for at in range(200))
    files = {
        **VLLM,
        "model_executor/models/llama.py": "from .deepseek import DeepseekForCausalLM as LlamaForCausalLM\n"
        f"{chain}\nclass PhiForCausalLM(f0(1)): ...\n",
        "model_executor/models/deepseek.py": "from .llama import LlamaForCausalLM as DeepseekForCausalLM\n"
        "from .deepseek import *\nclass A(B): ...\nclass B(A): ...\nclass DeepseekV3ForCausalLM(A, B): ...\n",
    }
    write_tree(tmp_path, "vllm", files)
    found = {each.architecture: each.supported for each in supports_all(open_source("vllm", str(tmp_path)))}
    assert found["LlamaForCausalLM"] == found["PhiForCausalLM"] == "unknown"
    assert found["DeepseekV3ForCausalLM"] in ("no", "unknown")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_garbled_source_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    engine = data.draw(st.sampled_from(["vllm", "sglang"]))
    files = dict(ALL[engine])
    for name in data.draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=3)):
        lines = files[name].split("\n")
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(lines) - 1))
            match data.draw(st.sampled_from(["cut", "drop", "double", "swap", "noise", "word"])):
                case "cut":
                    lines = lines[: at + 1]
                case "drop":
                    del lines[at : at + 1]
                    lines = lines or [""]
                case "double":
                    lines.insert(at, lines[at])
                case "swap":
                    other = data.draw(st.integers(0, len(lines) - 1))
                    lines[at], lines[other] = lines[other], lines[at]
                case "noise":
                    lines[at] += data.draw(st.text(max_size=10))
                case _:
                    words = data.draw(st.sampled_from(["self", "None", "LlamaForCausalLM", "super()", "[]", "*", "{}"]))
                    lines[at] = lines[at].replace("LlamaForCausalLM", words, 1).replace("nn.Module", words, 1)
        files[name] = "\n".join(lines)
    write_tree(tmp_path, engine, {name: text.encode("utf-8", "replace").decode() for name, text in files.items()})
    try:
        found = supports_all(open_source(engine, str(tmp_path), data.draw(st.sampled_from(["cuda", "rocm", "xpu"]))))
    except RequestError:
        return
    for each in found:
        assert each.supported in ("yes", "no", "unknown")
        json.dumps(each.as_json())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "eagle3ops", "supports", *arguments], capture_output=True, text=True)


def test_the_command(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["supports", "--engine", "vllm", "--path", str(site)]
    codes = {
        "LlamaForCausalLM": 0,
        "OldForConditionalGeneration": 3,
        "BrokenForConditionalGeneration": 3,
        "AnyForConditionalGeneration": 0,
        "OddForCausalLM": 3,
        "LamaForCausalLM": 2,
        "BloomyForCausalLM": 2,
    }
    for architecture, code in codes.items():
        assert cli.main([*base, "--architecture", architecture]) == code
    told = capsys.readouterr()
    assert "yes, but broken: EAGLE-3 for BrokenForConditionalGeneration in vllm 0.99.1" in told.out
    assert "did you mean LlamaForCausalLM" in told.err
    assert "was in vLLM until 0.9.2" in told.err
    assert cli.main([*base, "--architecture", "OldForConditionalGeneration", "--json"]) == 3
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(answer) == [
        *("engine", "version", "architecture", "class", "file", "supported", "wiring", "how", "where", "notes")
    ]
    assert cli.main([*base, "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("19 architectures: 13 yes (2 of them broken), 3 no, 3")
    assert cli.main([*base, "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 19
    assert cli.main(base) == cli.main([*base, "--all", "--architecture", "X"]) == 2
    assert cli.main(["--host", "local", *base, "--all"]) == 2


def test_nothing_is_imported(site: Path) -> None:
    poisoned = "import sys; sys.exit('imported')\n"
    assert "imported" not in SGLANG["__init__.py"]
    (site / "poison").mkdir()
    write_tree(site / "poison", "sglang", {**SGLANG, "__init__.py": poisoned})
    found = run("--engine", "sglang", "--path", str(site / "poison"), "--architecture", "LlamaForCausalLM")
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("engine", "platform", "least"),
    [
        pytest.param("vllm", "cpu", 250, marks=[pytest.mark.vllm, pytest.mark.timeout(600)]),
        pytest.param("sglang", "cpu", 200, marks=[pytest.mark.sglang, pytest.mark.timeout(600)]),
    ],
)
def test_against_an_installed_engine(engine: str, platform: Platform, least: int) -> None:
    """Every class that the engine can import says of itself what its source says."""
    variable = f"EAGLE3OPS_{engine.upper()}_PYTHON"
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no Python that has {engine}")
    script = Path(__file__).with_name("runtime_truth.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SGLANG_USE_CPU_ENGINE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, str(script), engine], capture_output=True, text=True, env=environment, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    truth: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    source = open_source(engine, str(Path(python).parent.parent), platform)
    known = {name: each for name, each in truth.items() if "supported" in each}
    architectures = [name for name in known if ":" not in name]
    said = {name: supports(source, name) for name in architectures}
    assert len(architectures) >= least
    wrong = [
        (name, said[name].supported, known[name])
        for name in architectures
        if said[name].supported != ("yes" if known[name]["supported"] else "no")
    ]
    assert not wrong
    # every class that the modules of models define: its bases in order, but for what decorators and factories add
    other: list[tuple[str, list[str], list[str]]] = []
    for name, each in known.items():
        source.interpreter.steps = 0
        of = source.interpreter.member(*name.split(":")) if ":" in name else source.resolve(name)
        order = source.classes.order(of).classes if isinstance(of, ClassValue) else ()
        bases = [f"{one.module}:{one.name}" for one in order if not one.name.startswith("ModelFor")]
        real = [one for one in each["mro"] if ".adapters:" not in one and ".compilation.wrapper:" not in one]
        if bases[1:] != real[1:] or not bases:
            other.append((name, bases, real))
    assert not other
