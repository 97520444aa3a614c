"""Imports go one way: a module may use what lies before it in the order of rooms, never after.

The checker reads every module's imports, those inside functions and under TYPE_CHECKING too; planted
violations at the end show that it sees what it is for.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A room's level: imports go to the same or a lower level.
LEVELS: dict[str, int] = {
    room: level
    for level, rooms in enumerate(
        (
            ("errors", "core"),
            ("codecs",),
            ("stores",),
            ("order",),
            ("index",),
            ("packing",),
            ("transforms", "processors"),
            ("containers", "fetch", "columns"),
            ("peers", "sources"),
            ("opening", "datasets"),
            ("kernel",),
            ("remote_workers",),
            ("kinds",),
            ("serving",),
            ("testing",),
            ("formulas",),
            ("deferral",),
            ("adapt",),
            ("instruments",),
            ("analysis",),
            ("diagnostics",),
            ("training",),
            ("",),  # the public namespace, `datapipe` itself
            ("cli", "__main__"),
        )
    )
    for room in rooms
}
# The parts of converters, each of which imports itself and earlier ones only.
PARTS = (
    "tokenizer", "options", "runs", "writers", "index_source", "sources", "samples", "planning", "report", "shards",
    "engines", "publishing", "tables", "verify", "conversion", "to_store", "",
)  # fmt: skip
CONVERTERS_MAY_USE = LEVELS["opening"]
CONVERTS = "datapipe.instruments.trials.process"  # the one module below cli that does

# Rooms, and those of their members that do not import each other.
SIBLINGS = {
    "datapipe.containers": ("folder", "tar", "tfrecord", "hdf5", "parquet"),
    "datapipe.peers": ("arrow", "lance", "mds", "litdata", "energon", "beton"),
    "datapipe.kinds": ("audio", "clips", "conversations", "images", "tables", "tokens"),
    "datapipe.kinds.images": ("images_cpu", "dali"),
    "datapipe.kinds.tables": ("arrow", "cudf"),
}

# Heavy or optional packages and the only modules (by prefix) that may import them.
OWN_ROOMS: dict[str, tuple[str, ...]] = {
    "lance": ("datapipe.peers.lance.library",),
    "nvidia.dali": ("datapipe.kinds.images.dali",),
    "nvidia.nvimgcodec": ("datapipe.codecs.decode", "datapipe.kinds.images.dali"),
    "cudf": ("datapipe.kinds.tables.cudf",),
    "pylibcudf": ("datapipe.kinds.tables.cudf",),
    "rmm": ("datapipe.kinds.tables.cudf",),
    "cupy": ("datapipe.kinds.tables.cudf",),
    "obstore": ("datapipe.stores",),
    "boto3": ("datapipe.stores",),
    "botocore": ("datapipe.stores",),
    "h5py": ("datapipe.containers.hdf5", "converters.writers.hdf5"),
    "lmdb": ("datapipe.sources.lmdb.listing",),
    "ray": ("datapipe.core.ray_cluster", "datapipe.serving.ray_actor", "converters.engines.ray"),
    "av": ("datapipe.codecs.video.library",),
    "PyNvVideoCodec": ("datapipe.kinds.clips.nvdec.library",),
    "soundfile": ("datapipe.codecs.audio.library",),
    "soxr": ("datapipe.codecs.audio.library",),
    "torchvision": ("datapipe.adapt", "datapipe.deferral"),
    "torchrec": ("datapipe.kinds.tables.jagged",),
    "accelerate": ("datapipe.adapt.hosts",),
    "transformers": ("datapipe.adapt.hosts.trainer", "datapipe.diagnostics.hosts.trainer", "converters.samples.template"),
    "lightning": ("datapipe.diagnostics.hosts.lightning",),
    "timm": (),
    "webdataset": (),
    "tfrecord": (),
    "tensorflow": (),
    "google.protobuf": (),
}
# The only modules (by prefix) that may use CUDA's own names; all others serve any accelerator of torch.
CUDA_ROOMS = (
    "datapipe.kernel.cuda_runtime",
    "datapipe.kinds.images.dali",
    "datapipe.instruments.attach.cuda_hooks",
    "datapipe.instruments.measure.clock",  # times between CUDA's events
    "datapipe.instruments.torch_stages.ranges",  # NVTX
)
TORCH_FREE = (
    "converters",
    *(
        f"datapipe.{room}"
        for room in (
            "errors",
            "core",
            "codecs",
            "stores",
            "index",
            "order",
            "packing",
            "columns",
            "containers",
            "peers",
            "sources",
            "opening",
        )
    ),
    *(f"datapipe.instruments.measure.{module}" for module in ("clock", "bracket", "timeline", "watching", "recorded")),
    "datapipe.analysis",
    "datapipe.diagnostics.report",
)


# What starts processes: modules, and the beginnings of names of `os`.
STARTERS = ("subprocess", "multiprocessing", "concurrent", "asyncio", "pty")
STARTING = ("fork", "spawn", "posix_spawn", "exec", "popen", "system")


@dataclass(frozen=True)
class Import:
    """`importer` uses `imported`: dotted names, the second down to the module."""

    importer: str
    imported: str
    line: int


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file of everything in the two packages."""
    found = {}
    for package in ("datapipe", "converters"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a module, which is not to be changed."""
    return ast.parse(source)


@pytest.fixture(scope="module", autouse=True)
def _trees_are_dropped() -> Iterator[None]:
    """Later tests count objects, and collect garbage among them."""
    yield
    parsed.cache_clear()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a tree, nested ones too, without their expressions: a tenth of the nodes."""
    for parts in (getattr(tree, name, ()) for name in ("body", "handlers", "cases", "orelse", "finalbody")):
        for node in parts if isinstance(parts, list) else ():
            yield node
            yield from statements(node)


def for_typing(tree: ast.Module) -> set[ast.AST]:
    """Return the statements that run only where types are checked."""
    return {
        inside
        for node in statements(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inside in (statement, *statements(statement))
    }


def imports_of(
    name: str, source: str, known: set[str], *, is_package: bool, leave_out: set[ast.AST] | None = None
) -> Iterator[Import]:
    """Every import in `source`; `from package import member` counts as the member where that is a module."""
    for node in statements(parsed(source)):
        if leave_out is not None and node in leave_out:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = name.split(".")[: None if is_package and node.level == 1 else -(node.level - is_package)]
                base = ".".join([*up, *filter(None, [node.module])])
            for alias in node.names:
                member = f"{base}.{alias.name}"
                is_module = member in known or member in OWN_ROOMS or base == "nvidia"
                yield Import(name, member if is_module else base, node.lineno)


def violations(found: list[Import]) -> list[str]:
    """One line for each import that goes the wrong way."""
    wrong = []
    for use in found:
        reason = _reason(use)
        if reason:
            wrong.append(f"{use.importer}:{use.line} imports {use.imported}: {reason}")
    return wrong


def _reason(use: Import) -> str | None:
    importer, imported = use.importer, use.imported
    for package, owners in OWN_ROOMS.items():
        if _inside(imported, package) and not any(importer.startswith(owner) for owner in owners):
            return f"only {' and '.join(owners) or 'tests and benchmarks'} may"
    if _inside(imported, "torch") and any(_inside(importer, room) for room in TORCH_FREE):
        return "this room works without torch"
    if _inside(imported, "converters"):
        if _inside(importer, "datapipe") and _room(importer) != "cli" and importer != CONVERTS:
            return f"of datapipe only cli and {CONVERTS} import converters"
        if _inside(importer, "converters") and PARTS.index(_room(imported)) > PARTS.index(_room(importer)):
            return "the parts of converters import earlier ones only"
        return None
    if not _inside(imported, "datapipe"):
        return None
    used = _level(imported)
    if used is None:
        return "a room without a level: give it one in tests/test_imports.py"
    if _inside(importer, "converters"):
        return None if used <= CONVERTERS_MAY_USE else "converters use datapipe only up to opening"
    own = _level(importer)
    if own is None:
        return "a room without a level: give it one in tests/test_imports.py"
    if used > own:
        return "imports go to lower rooms only"
    return _sibling_reason(importer, imported)


def _sibling_reason(importer: str, imported: str) -> str | None:
    for room, members in SIBLINGS.items():
        ours, theirs = (_member(name, room) for name in (importer, imported))
        if ours != theirs and ours in members and theirs in members:
            return f"the members {ours} and {theirs} of {room} do not import each other"
    return None


def _inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def _member(name: str, room: str) -> str:
    """The part of `room` that the module belongs to; empty if it is not in the room."""
    return name.removeprefix(f"{room}.").partition(".")[0] if _inside(name, room) else ""


def _level(name: str) -> int | None:
    return LEVELS.get(_room(name))


def imports_within(room: str) -> list[Import]:
    """Return the imports of all modules of a room."""
    known = modules(ROOT)
    return [
        use
        for name, path in known.items()
        if _inside(name, room)
        for use in imports_of(name, path.read_text(), set(known), is_package=path.name == "__init__.py")
    ]


@pytest.mark.parametrize("room", ["converters", *(f"datapipe.{room}" for room in LEVELS if room)])
def test_imports_go_one_way(room: str) -> None:
    found = imports_within(room)
    assert found or room == "datapipe.errors", "the walk found no imports at all"
    assert violations(found) == []


def test_the_public_namespace_imports_what_it_may() -> None:
    name, path = "datapipe", ROOT / "datapipe" / "__init__.py"
    assert violations(list(imports_of(name, path.read_text(), set(modules(ROOT)), is_package=True))) == []


def needed_by_each(sources: dict[str, str], *, for_types: bool) -> dict[str, set[str]]:
    """Module -> the modules of ours that its code imports, inside functions too; `for_types`: and those for typing alone."""
    known, needed = set(sources), {}
    for name, source in sources.items():
        left_out = None if for_types else for_typing(parsed(source))
        uses = imports_of(name, source, known, is_package=False, leave_out=left_out)
        needed[name] = {use.imported for use in uses if use.imported in known} - {name}
    return needed


def test_no_module_needs_itself_by_way_of_others() -> None:
    """Nor for types: two modules that name each other's types are read together, and so are one, or lack a third."""
    sources = {name: path.read_text() for name, path in modules(ROOT).items()}
    graphlib.TopologicalSorter(needed_by_each(sources, for_types=True)).prepare()
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b"
    for last in ("import b", "def f():\n    import b", for_types):
        planted = {"a": "import b", "b": "import c", "c": last}
        with pytest.raises(graphlib.CycleError):
            graphlib.TopologicalSorter(needed_by_each(planted, for_types=True)).prepare()
        graphlib.TopologicalSorter(needed_by_each(planted | {"c": ""}, for_types=True)).prepare()
    assert needed_by_each({"a": for_types, "b": ""}, for_types=False) == {"a": set(), "b": set()}


def test_packing_knows_lengths_and_no_files() -> None:
    """A kind whose samples are no documents of a file of tokens packs them as well."""
    found = {use.imported for use in imports_within("datapipe.packing") if _inside(use.imported, "datapipe.index")}
    assert found == {"datapipe.index.arrow_buffers", "datapipe.index.entries"}


def starts_processes(source: str) -> bool:
    """Return True for a module that has what starts processes: `subprocess`, `multiprocessing`, forks and spawns of `os`."""
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Import(names=names) if any(alias.name.split(".")[0] in STARTERS for alias in names):
                return True
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in STARTERS:
                return True
            case ast.Attribute(value=ast.Name("os"), attr=name) if name.startswith(STARTING):
                return True
            case ast.ImportFrom(module="os", names=names) if any(alias.name.startswith(STARTING) for alias in names):
                return True
    return False


def test_analysis_starts_no_process() -> None:
    """It is arithmetic on what was recorded and tried; neither do the modules that it needs, directly or not."""
    sources = {name: path.read_text() for name, path in modules(ROOT).items()}
    needed, reached = needed_by_each(sources, for_types=False), set[str]()
    todo = [name for name in sources if _inside(name, "datapipe.analysis")]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += needed[name]
    assert "datapipe.instruments.measure.recorded" in reached, "the walk found no imports at all"
    assert sorted(name for name in reached if starts_processes(sources[name])) == []
    assert starts_processes(sources["datapipe.instruments.trials.running"])
    for planted in (
        "def f():\n    import subprocess",
        "from multiprocessing import pool",
        "import os\nos.fork()",
        "from os import execv",
    ):
        assert starts_processes(planted)
    assert not starts_processes("import os\nos.path.exists('a')")


def code_lines(source: str) -> int:
    """The lines of a module without blank ones, comments and docstrings."""
    documented: set[int] = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, source.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in documented for number, line in lines)


def test_no_room_is_too_large_to_know() -> None:
    """One that outgrows this is divided along its imports. A kind of data is a room of its own, as is each part of converters."""
    assert code_lines('"""What it is."""\n\n# Why.\nA = """\nb"""\ndef f():\n    """It."""\n    return (\n        1)\n') == 5
    sizes: dict[str, int] = {}
    for name, path in modules(ROOT).items():
        parts = name.split(".")
        room = ".".join(parts[: 3 if parts[:2] == ["datapipe", "kinds"] else 2])
        sizes[room] = sizes.get(room, 0) + code_lines(path.read_text())
    assert sizes["datapipe.deferral"] > 1000, "the count found no code"
    assert {room: size for room, size in sizes.items() if size > 5000} == {}


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_converters_run_without_torch() -> None:
    names = [name for name in modules(ROOT) if _inside(name, "converters")]
    assert "converters" in names
    code = f"import sys, importlib\nfor name in {names!r}: importlib.import_module(name)\nprint('torch' in sys.modules)"
    assert run_python(code) == "False"


def test_importing_datapipe_is_light() -> None:
    heavy = ("torch", "pyarrow", "PIL", *OWN_ROOMS)
    assert run_python(f"import sys, datapipe\nprint([name for name in {heavy!r} if name in sys.modules])") == "[]"


def test_flight_is_imported_by_loaders_with_workers_alone() -> None:
    kinds = [f"datapipe.kinds.{kind}.kind" for kind in ("images", "clips", "conversations")]
    code = f"import sys, importlib\nfor name in {kinds!r}: importlib.import_module(name)\n"
    assert run_python(code + "print('pyarrow.flight' in sys.modules)") == "False"


@pytest.mark.nightly
def test_rooms_of_optional_packages_are_entered_late() -> None:
    """Everything but the optional packages' own rooms imports without loading them."""
    optional = tuple(name for name in OWN_ROOMS if name != "nvidia.nvimgcodec")
    owners = tuple(owner for name in optional for owner in OWN_ROOMS[name])
    names = [name for name in modules(ROOT) if not name.startswith(owners) and not name.endswith("__main__")]
    code = (
        "import sys, importlib, datapipe\nassert 'torch' not in sys.modules\n"
        "datapipe.DataLoader\nassert 'torch' in sys.modules\n"  # the first use imports it
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    assert run_python(code + f"print([name for name in {optional!r} if name in sys.modules])") == "[]"


def uses_of_cuda(source: str) -> list[int]:
    """The lines that name something of CUDA's alone: `torch.cuda`, also in text or imported, and `is_cuda` of tensors."""
    lines = []
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Attribute(value=ast.Name("torch"), attr="cuda") | ast.Attribute(attr="is_cuda"):
                lines.append(node.lineno)
            case ast.Import(names=names) if any(_inside(alias.name, "torch.cuda") for alias in names):
                lines.append(node.lineno)
            case ast.ImportFrom(module=str(module)) if _inside(module, "torch.cuda"):
                lines.append(node.lineno)
            case ast.ImportFrom(module="torch", names=names) if any(alias.name == "cuda" for alias in names):
                lines.append(node.lineno)
            case ast.Constant(str(text)) if text.startswith("torch.cuda"):
                lines.append(node.lineno)
    return sorted(lines)


def test_what_is_cudas_alone_stays_in_its_rooms() -> None:
    """Elsewhere the device is any accelerator's."""
    found = {name: lines for name, path in modules(ROOT).items() if (lines := uses_of_cuda(path.read_text()))}
    assert [name for name in found if not name.startswith(CUDA_ROOMS)] == []
    assert [room for room in CUDA_ROOMS if not any(name.startswith(room) for name in found)] == []
    planted = "import torch.cuda\nfrom torch import cuda\nfrom torch.cuda import Stream\ntorch.cuda.empty_cache()\nx.is_cuda\n"
    assert uses_of_cuda(planted + "find('torch.cuda.nvtx')\ntorch.accelerator.is_available()") == [1, 2, 3, 4, 5, 6]


PLANTED = {
    "a higher room": ("datapipe.order.plan", "from datapipe.kernel.options import LoaderOptions"),
    "a higher room, inside a function": ("datapipe.fetch.local", "def f():\n    from datapipe import kernel"),
    "a higher room, relatively": ("datapipe.containers.tar.scanner", "from ...kernel import options"),
    "a higher room, for typing only": ("datapipe.order.sample_order", "if TYPE_CHECKING:\n    import datapipe.cli.main"),
    "another format": ("datapipe.containers.tar.scanner", "from datapipe.containers.folder import FOLDER"),
    "another format, relatively": ("datapipe.containers.tar.scanner", "from ..folder import FOLDER"),
    "another backend": ("datapipe.kinds.images.dali.graph", "from datapipe.kinds.images.images_cpu import CpuImageBackend"),
    "a kind from the kernel": ("datapipe.kernel.explanation", "def f():\n    from datapipe.kinds.images import choice"),
    "another kind": ("datapipe.kinds.images.kind", "from datapipe.kinds.tables.kind import TableKind"),
    "the public namespace from below": ("datapipe.kinds.loader", "from datapipe import DataLoader"),
    "torch from a converter": ("converters.writers.tar", "def f():\n    import torch.utils.data"),
    "torch from a container": ("datapipe.containers.tar.scanner", "import torch"),
    "torch from the measure": ("datapipe.instruments.measure.bracket", "import torch.cuda"),
    "diagnostics from the loader": ("datapipe.kinds.loader", "from datapipe.instruments.measure import bracket"),
    "the loader from a converter": ("converters.engines.local", "from datapipe.kernel import options"),
    "a later part of converters": ("converters.samples.reading", "from converters.planning.plan import read_plan"),
    "converters from the loader": ("datapipe.kinds.loader", "import converters.engines.local"),
    "converters from the diagnosis": ("datapipe.analysis.predict.candidates", "import converters.engines.local"),
    "DALI outside its room": ("datapipe.kinds.loader", "from nvidia import dali"),
    "DALI's parts outside its room": ("datapipe.kinds.images.images_cpu", "from nvidia.dali import fn"),
    "h5py outside its room": ("datapipe.containers.tar.scanner", "import h5py"),
    "webdataset anywhere": ("datapipe.containers.tar.scanner", "import webdataset as wds"),
    "another TFRecord reader": ("datapipe.containers.tfrecord.scanner", "from tfrecord.reader import tfrecord_loader"),
    "a command from the public namespace": ("datapipe", "from datapipe.cli import main"),
    "a room nobody placed": ("datapipe.helpers", "import datapipe.errors"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_checker_sees_planted_violation(case: str) -> None:
    name, source = PLANTED[case]
    known = set(modules(ROOT))
    assert len(violations(list(imports_of(name, source, known, is_package=False)))) == 1


def test_checker_passes_what_is_allowed() -> None:
    allowed = {
        "datapipe.kinds.loader": "from datapipe.kinds.images import choice\nimport datapipe.order.plan\nimport torch",
        "datapipe.containers.parquet.scanner": "from .pages import offsets\nfrom datapipe.containers.listing import listing",
        "datapipe.kinds.images.dali.graph": "from nvidia import dali\nfrom datapipe.kernel.pools import Slab",
        "datapipe.cli.convert": "import datapipe as dp\ndef run():\n    import converters",
        CONVERTS: "import converters",
        "datapipe": "from datapipe.kinds.loader import DataLoader",
    }
    for name, source in allowed.items():
        assert violations(list(imports_of(name, source, set(modules(ROOT)), is_package=False))) == []
