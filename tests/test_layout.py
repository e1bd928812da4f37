"""Imports go one way and stay light, libraries are declared, and the wheel holds the runtime and the command line."""

import ast
import functools
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import aiokafka
import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("producer", "worker", "engine", "scheduler", "cache", "ops")
PACKAGE = ROOT / "ops" / "package" / "penstock"
MAY_IMPORT = {
    "producer": set[str](),
    "scheduler": set[str](),
    "engine": set[str](),
    "cache": set[str](),
    "worker": {"producer", "scheduler", "engine", "cache"},
    "ops": {"producer", "scheduler", "engine", "cache", "worker"},
}
# Library -> rooms that may import it. Other libraries are free.
LIBRARY_ROOMS = {
    "torch": {"engine", "ops"},
    "transformers": {"producer", "engine", "ops"},  # the producer takes its tokenizers
    "cupy": {"engine", "ops"},
    "aiokafka": {"producer", "worker", "ops"},
    "aiosqlite": {"cache"},
    # These run code found in the data they read.
    "pickle": set[str](),
    "marshal": set[str](),
    "shelve": set[str](),
    "dill": set[str](),
    "cloudpickle": set[str](),
}
FREE_LIBRARIES = {"numpy", "structlog", "penstock"}
CHECKOUT_ONLY = {ROOT / "ops" / name for name in ("bench", "chaos", "figures", "loop")}  # not in the wheel
# Of the rooms' imports, those that only an extra installs.
OF_EXTRAS = (
    "torch",
    "transformers",
    "numba",
    "safetensors",
    "huggingface_hub",
    "deltalake",
    "pyiceberg",
    "obstore",
    "pyarrow",
    "polars",
    "matplotlib",
)
HEAVY = ("torch", "transformers", "cupy", "confluent_kafka")
AIOKAFKA_INTERNALS = ROOT / "producer" / "aiokafka_internals"
AIOKAFKA_PUBLIC = {f"aiokafka.{name}" for name in ("abc", "admin", "errors", "helpers", "structs")}
# Public classes of which others are made. Errors are too.
AIOKAFKA_BASES = ("aiokafka.ConsumerRebalanceListener", "aiokafka.abc.", "aiokafka.errors.")


@functools.cache
def room_files(room: str) -> tuple[Path, ...]:
    files = (path for path in (ROOT / room).rglob("*") if path.is_file())
    return tuple(sorted(path for path in files if not {"__pycache__", "package"} & set(path.relative_to(ROOT).parts)))


def shipped_files() -> list[Path]:
    """The files of the rooms' packages that the wheel holds."""
    files = (path for room in ROOMS for path in room_files(room))
    return [path for path in files if (path.parent / "__init__.py").exists() and CHECKOUT_ONLY.isdisjoint(path.parents)]


def run_python(code: str) -> str:
    """Output of a fresh interpreter, outside the repository so that no folder of it is importable by accident."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def imported_names(path: Path) -> frozenset[str]:
    """Every absolute module name that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = f"{'.' * node.level}{node.module or ''}"
            names.update({module} | {f"{module}.{alias.name}" for alias in node.names})
    return frozenset(names)


IMPORT_WITH_ROOMS_BLOCKED = """
import importlib, pkgutil, sys

room, blocked = {room!r}, {blocked!r}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in [["penstock", other] for other in blocked]:
            raise ImportError(f"penstock.{{room}} must not import {{name}}")

sys.meta_path.insert(0, Blocker())
package = importlib.import_module(f"penstock.{{room}}")
for module in pkgutil.walk_packages(package.__path__, f"penstock.{{room}}."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(sum(name.startswith(f"penstock.{{room}}") for name in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize("room", [room for room in ROOMS if room != "ops"])
def test_a_room_imports_with_the_forbidden_rooms_blocked(room: str) -> None:
    blocked = sorted(set(ROOMS) - MAY_IMPORT[room] - {room})
    num_imported = run_python(IMPORT_WITH_ROOMS_BLOCKED.format(room=room, blocked=blocked))
    importable = [path for path in room_files(room) if path.suffix == ".py" and path.stem != "__main__"]
    assert int(num_imported) == len(importable)


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_of_a_room_imports_a_forbidden_room_or_library(room: str) -> None:
    """Also inside functions, where the test above does not look."""
    forbidden = {f"penstock.{other}" for other in set(ROOMS) - MAY_IMPORT[room] - {room}}
    forbidden |= {library for library, rooms in LIBRARY_ROOMS.items() if room not in rooms}
    for path in room_files(room):
        if path.suffix == ".py":
            for name in imported_names(path):
                assert not any(f"{name}.".startswith(f"{bad}.") for bad in forbidden), f"{path} imports {name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [*(f"penstock.{room}" for room in ROOMS), "penstock.ops.cli.main", "penstock.worker.process"]
)
def test_importing_a_room_loads_neither_torch_nor_another_heavy_library(module: str) -> None:
    assert run_python(f"import sys, {module}; print(*set({HEAVY!r}) & set(sys.modules))").strip() == ""


def test_the_map_names_the_libraries_that_the_files_of_a_folder_import() -> None:
    """Its last column, in code marks; numpy and structlog go without saying."""
    named, imported = mapped_libraries(), {}
    for folder in named:
        paths = [path for name in folder for path in (ROOT / name).glob("*.py")]
        assert paths, f"ARCHITECTURE.md: {folder} hold no module"
        heads = {name.split(".")[0] for path in paths for name in imported_names(path) | loaded_names(path)}
        imported[folder] = {head for head in heads - FREE_LIBRARIES if head not in sys.stdlib_module_names}
    assert named == imported


def test_the_map_has_every_package_of_the_runtime() -> None:
    packages = {
        path.parent for room in ROOMS if room != "ops" for path in room_files(room) if path.name == "__init__.py"
    }
    assert {ROOT / name for folder in mapped_libraries() for name in folder} == packages


def mapped_libraries() -> dict[tuple[str, ...], set[str]]:
    """The folders of a row of the code map -> the libraries in its last column. Rows of any library are left out."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|.*\| ?([^|]*)\|$", text.split("## Code map")[1].split("\n## ")[0], re.MULTILINE)
    return {
        tuple(re.findall(r"`([\w/]+)/`", folders)): set(re.findall(r"`(\w+)`", last))
        for folders, last in rows
        if "any library" not in last and "tests/" not in folders
    }


def loaded_names(path: Path) -> set[str]:
    """Modules that a file imports by `import_module("name")`."""
    return set(re.findall(r'import_module\("([\w.]+)"\)', path.read_text(encoding="utf-8")))


def test_what_the_wheel_holds_imports_nothing_of_a_checkout_only() -> None:
    for path in shipped_files():
        if path.suffix == ".py":
            heads = (f"penstock.ops.{folder.name}." for folder in CHECKOUT_ONLY)
            assert not any(f"{name}.".startswith(head) for head in heads for name in imported_names(path)), path


IMPORT_WITHOUT_EXTRAS = """
import sys
from importlib import import_module

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {libraries!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from penstock.ops.cli.main import MODULES
for name in MODULES.keys() - {{"bench"}}:
    import_module(MODULES[name])
import penstock.producer
"""


@pytest.mark.slow
def test_the_client_and_the_help_of_every_command_import_no_library_of_an_extra() -> None:
    run_python(IMPORT_WITHOUT_EXTRAS.format(libraries=OF_EXTRAS))


def test_every_library_that_the_wheel_imports_is_declared() -> None:
    """In the dependencies, or in an extra for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    of_users = (
        "worker",
        "parquet",
        "object-stores",
        "delta",
        "iceberg",
        "parity",
        "demo",
        "bench",
        "logs",
        "otel",
        "registry",
    )
    lines = [*project["dependencies"], *(line for extra in of_users for line in extras[extra])]
    declared = {distribution(line) for line in lines}
    libraries = packages_distributions()
    undeclared = {
        library: path.relative_to(ROOT)
        for path in shipped_files()
        if path.suffix == ".py"
        for library in {name.split(".")[0] for name in imported_names(path)} - sys.stdlib_module_names - {"penstock"}
        if declared.isdisjoint(map(distribution, libraries[library]))
    }
    assert undeclared == {}


def distribution(requirement: str) -> str:
    """`faststream[kafka]>=0.7` -> `faststream`, in the form of the package index."""
    return re.sub("[-_.]+", "-", re.split("[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


@pytest.mark.parametrize("room", ROOMS)
def test_the_modules_of_a_room_import_each_other_in_one_direction(room: str) -> None:
    """Also inside functions and for type checkers. Raises CycleError with the circle."""
    imports = {module_name(path): imported_names(path) for path in room_files(room) if path.suffix == ".py"}
    graph = {name: (imported & imports.keys()) - {name} for name, imported in imports.items()}
    assert set(TopologicalSorter(graph).static_order()) == graph.keys()


def private_uses_of_aiokafka(tree: ast.Module) -> set[str]:
    """Uses of aiokafka in a file beside its documented names: imports, base classes, attributes.

    Which object an attribute is of is not known; that its name is private to aiokafka is.
    """
    modules = {f"aiokafka.{name}" for _, name, _ in pkgutil.iter_modules(aiokafka.__path__)} - AIOKAFKA_PUBLIC
    origins: dict[str, str] = {}  # of the names in the file
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            origins |= {alias.asname or alias.name: f"{prefix}{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            found |= {node.attr} & private_names_of_aiokafka()
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "import_module"):
            texts = {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
            found |= texts & (private_names_of_aiokafka() | modules)
    found |= {origin for origin in origins.values() if f"{origin}.".startswith(tuple(f"{one}." for one in modules))}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {origins.get(head, head) + rest for head, *rests in map(split_base, node.bases) for rest in rests}
            theirs = {base for base in bases if base.startswith(("aiokafka.", module_name(AIOKAFKA_INTERNALS)))}
            found |= {f"{node.name}({base})" for base in theirs if not base.startswith(AIOKAFKA_BASES)}
    return found


def split_base(base: ast.expr) -> tuple[str, str]:
    """`errors.KafkaError` -> the name in the file, and the rest with its point."""
    head, point, rest = ast.unparse(base).partition(".")
    return head, point + rest


@functools.cache
def private_names_of_aiokafka() -> frozenset[str]:
    """Attributes and methods with a leading underscore, but for those of every named tuple."""
    names = set[str]()
    for path in Path(aiokafka.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
    return frozenset(name for name in names - set(dir(tuple)) if re.match("_[a-z]", name)) - {"_asdict", "_replace"}


def test_one_package_touches_what_aiokafka_keeps_private() -> None:
    rooms = {ROOT / room for room in LIBRARY_ROOMS["aiokafka"]}
    files = [path for path in shipped_files() if path.suffix == ".py" and not rooms.isdisjoint(path.parents)]
    files = [path for path in files if AIOKAFKA_INTERNALS not in path.parents]
    uses = {path: private_uses_of_aiokafka(ast.parse(path.read_text(encoding="utf-8"))) for path in files}
    assert {path.relative_to(ROOT): found for path, found in uses.items() if found} == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import aiokafka.conn", {"aiokafka.conn"}),
        ("from aiokafka.consumer.fetcher import Fetcher", {"aiokafka.consumer.fetcher.Fetcher"}),
        ("from aiokafka import client", {"aiokafka.client"}),
        ("import_module('aiokafka.conn')", {"aiokafka.conn"}),
        ("consumer._fetcher.begin()", {"_fetcher"}),
        ("self.consumer._coordinator.generation = 1", {"_coordinator"}),
        ("getattr(consumer, '_client')", {"_client"}),
        ("from aiokafka import AIOKafkaConsumer as C\nclass A(C): ...", {"A(aiokafka.AIOKafkaConsumer)"}),
        ("import aiokafka\nclass A(aiokafka.AIOKafkaProducer): ...", {"A(aiokafka.AIOKafkaProducer)"}),
        ("from aiokafka.errors import KafkaError\nclass A(KafkaError): ...", set()),
        ("from aiokafka.abc import AbstractTokenProvider as T\nclass A(T): ...", set()),
        ("record._replace(offset=1)\nself._client = client", set()),
    ],
)
def test_a_private_use_of_aiokafka_is_found(line: str, found: set[str]) -> None:
    assert private_uses_of_aiokafka(ast.parse(line)) == found


def folders_of_packages() -> list[str]:
    """Every folder that holds packages: the rooms, ops/bench, ops/bench/serving, and so on."""
    packages = {path.parent for room in ROOMS for path in room_files(room) if path.name == "__init__.py"}
    return sorted({package.parent.relative_to(ROOT).as_posix() for package in packages} - {"."})


@pytest.mark.parametrize("base", folders_of_packages())
def test_the_packages_in_a_folder_import_each_other_in_one_direction(base: str) -> None:
    """Each package, and each module beside them, is one node. Raises CycleError with the circle."""
    depth = len(Path(base).parts)
    modules = [path for path in room_files(base) if path.suffix == ".py"]
    parts = {module_name(path): path.relative_to(ROOT).parts[depth] for path in modules}
    graph: dict[str, set[str]] = {part: set() for part in parts.values()}
    for path in modules:
        own = parts[module_name(path)]
        graph[own] |= {parts[name] for name in imported_names(path) & parts.keys()} - {own}
    assert set(TopologicalSorter(graph).static_order()) == graph.keys()


def test_a_public_class_name_stands_for_one_thing() -> None:
    classes = Counter(
        node.name
        for path in shipped_files()
        if path.suffix == ".py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not {name for name, count in classes.items() if count > 1}


def module_name(path: Path) -> str:
    """ops/cli/main.py -> penstock.ops.cli.main."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("penstock", *parts)).removesuffix(".__init__")


def test_no_room_is_importable_or_imported_by_its_bare_name() -> None:
    imports = ", ".join(f"penstock.{room}" for room in ROOMS)
    code = f"import sys, importlib.util as util, {imports}; rooms = {ROOMS!r}\n"
    code += "print(*[room for room in rooms if room in sys.modules or util.find_spec(room) is not None])"
    assert run_python(code).strip() == ""


def test_the_type_checker_sees_every_file() -> None:
    """mypy follows the links of the package, as Python does; a file without one would be missing."""
    unseen = [
        path.relative_to(ROOT)
        for room in ROOMS
        for path in room_files(room)
        if path.suffix == ".py" and not (PACKAGE / path.relative_to(ROOT)).exists()
    ]
    assert unseen == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves folders behind that the next build would pack."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_only_top_level_name_of_the_wheel_is_penstock(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"penstock"}


@pytest.mark.slow
def test_the_wheel_holds_the_runtime_and_the_command_line_and_no_benchmark(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    shipped = {f"penstock/{path.relative_to(ROOT).as_posix()}" for path in shipped_files()}
    # For a checkout only.
    shipped -= {"penstock/ops/constraints.txt", "penstock/ops/mkdocs.yml", "penstock/scheduler/ABLATION.md"}
    own = {f"penstock/{path.name}" for path in PACKAGE.iterdir() if path.is_file()}
    assert packed == shipped | own
    assert own == {"penstock/__init__.py", "penstock/__main__.py", "penstock/py.typed"}
    assert {f"penstock/{room}/py.typed" for room in ROOMS} <= packed
    assert {"penstock/producer/wire/WIRE.md", "penstock/ops/kafka/pom.xml"} <= packed
    checkout_only = tuple(f"penstock/ops/{folder.name}/" for folder in CHECKOUT_ONLY)
    assert not any(name.startswith(checkout_only) for name in packed)


@pytest.mark.slow
def test_the_wheel_works_where_no_checkout_is(wheel: Path, tmp_path: Path) -> None:
    """Installed into an environment of its own, which borrows the dependencies of this one but not its penstock."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    python = tmp_path / "bin" / "python"
    (site,) = (tmp_path / "lib").glob("python*/site-packages")
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "borrowed.pth").write_text(f"{borrowed}\n")  # its own .pth files, the editable penstock's too, stay unread
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment)

    code = "import penstock.worker, penstock.ops.kafka.jars as jars; print(penstock.worker.__file__, jars.jar_dir())"
    done = run(python, "-c", code)
    assert done.stdout.startswith(str(site)), done.stderr
    done = run(tmp_path / "bin" / "penstock", "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    done = run(tmp_path / "bin" / "penstock", "bench")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: Benchmarks run from a checkout of the repository;")


def test_no_room_grows_unnoticed() -> None:
    most = tomllib.loads((ROOT / "tests" / "lines.toml").read_text(encoding="utf-8"))
    assert {*ROOMS, "tests"} <= most.keys()
    for room, limit in most.items():
        files = (path for path in (ROOT / room).rglob("*.py") if "package" not in path.relative_to(ROOT).parts)
        lines = sum([path.read_bytes().count(b"\n") for path in files])
        assert 0.95 * limit <= lines <= limit, f"{room} has {lines} lines; tests/lines.toml says {limit}"
