"""Packages of SGLang and of what it computes with, as far as their source is read and not run."""

from pathlib import Path

FIELDS_14 = """
ATTENTION_BACKEND_CHOICES = ["triton", "fa3", "flashinfer", "torch_native"]

@dataclasses.dataclass
class ServerArgs:
    model_path: A[str, Arg(help="Path.", aliases=["--model"])]
    host: A[str, "The host."] = "127.0.0.1"
    port: A[int, "The port."] = 30000
    tp_size: A[int, Arg(help="The size.", aliases=["--tensor-parallel-size"])] = 1
    attention_backend: A[Optional[str], Arg(help="x", choices=ATTENTION_BACKEND_CHOICES)] = None
    sampling_backend: A[Optional[str], Arg(choices=SAMPLING_BACKEND_CHOICES)] = None
    hidden: A[int, Arg(no_cli=True)] = 1
    kv_cache: A[Literal["auto", "fp8"], "Kind."] = "auto"
    spread: A[bool, Arg(action=argparse.BooleanOptionalAction)] = False
    named: A[int, Arg(cli_name="--its-own-name")] = 1
    plain: int = 3
"""
OURS = """
    dtype max_running_requests random_seed grammar_backend decode_log_interval enable_metrics max_total_tokens
    mem_fraction_static cuda_graph_max_bs_decode cuda_graph_backend_prefill cuda_graph_backend_decode device
    disable_overlap_schedule trust_remote_code context_length enable_return_hidden_states disable_radix_cache
    chunked_prefill_size speculative_algorithm speculative_draft_model_path speculative_num_steps
    speculative_eagle_topk speculative_num_draft_tokens nnodes node_rank dist_init_addr
""".split()  # noqa: SIM905
MANY = 100
"""As many options as a source has to have to be believed."""


def fields(names: list[str]) -> str:
    return "".join(f'    {name}: A[int, "x"] = 1\n' for name in names)


def sglang(site: Path, version: str = "0.5.14", *, later: bool = False) -> Path:
    """Write the package; `later`: with the fields spread over several files, as 0.5.23 has them."""
    folder = site / "sglang"
    (folder / "srt/layers").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    filler = fields([f"option_{number}" for number in range(MANY)])
    extra = '    def add_cli_args(p):\n        p.add_argument("--config", type=str)\n'
    if not later:
        old = '        p.add_argument("--cuda-graph-max-bs", type=int)\n'
        (folder / "srt/server_args.py").write_text(FIELDS_14 + fields(OURS) + filler + extra + old)
        (folder / "srt/layers/sampler.py").write_text("if is_cuda():\n    from flashinfer.sampling import (\n    a)\n")
        return folder
    groups = folder / "srt/arg_groups/fields"
    groups.mkdir(parents=True)
    lists, _, body = FIELDS_14.partition("@dataclasses.dataclass")
    (folder / "srt/arg_groups/choices.py").write_text(lists)
    (groups / "model.py").write_text(body.replace("ServerArgs", "Model(msgspec.Struct)"))
    more = ["cuda_graph_max_bs_prefill", "cuda_graph_bs_decode"]
    (groups / "exec_.py").write_text("class Exec(msgspec.Struct):\n" + fields(OURS + more) + filler)
    (folder / "srt/server_args.py").write_text("class ServerArgs:\n" + extra)
    (folder / "srt/layers/sampler.py").write_text('x = LazyImport(\n    "flashinfer.sampling", "a")\n')
    return folder


def flashinfer(site: Path, *, stub: bool = False) -> None:
    folder = site / "flashinfer"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "sampling.py").touch()
    if not stub:
        (folder / "decode.py").touch()
        (folder / "jit").mkdir()


def kernels(site: Path, *, fa3: bool = True) -> None:
    folder = site / "sgl_kernel"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    if fa3:
        (folder / "flash_ops.abi3.so").touch()
