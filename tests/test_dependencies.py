"""How the packages depend on each other: read from the source, so that an import inside a function counts too."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("hybrid_attention", "devices", "datamodules", "lightning_modules")
MAY_IMPORT = {
    "hybrid_attention": {"devices"},
    "devices": set(),
    "datamodules": set(),
    "lightning_modules": {"hybrid_attention", "devices", "datamodules"},
}
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
OTHERS = [p for folder in ("tests", "benchmarks", "examples", "scripts") for p in (ROOT / folder).rglob("*.py")]
SOURCES = sorted((ROOT / "hybrid_attention" / "native").iterdir())
every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def imports(source, package=""):
    """(module, names) of each import: relative ones resolved against the package, names None for `import module`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (above, node.module) if part)
            found.append((module, [alias.name for alias in node.names]))
    return found


def imports_of(path):
    return imports(path.read_text(), ".".join(path.relative_to(ROOT).parent.parts))


def packages_of(found):
    return {module.split(".")[0] for module, _ in found}


def test_the_reader_sees_every_kind_of_import():
    source = (
        "import a.b\nfrom c import d as e\ndef f():\n    import g\nif x:\n    from . import h\n    from .i import j\n"
    )
    expected = [("a.b", None), ("c", ["d"]), ("g", None), ("p.q", ["h"]), ("p.q.i", ["j"])]
    assert sorted(imports(source, "p.q"), key=str) == sorted(expected, key=str)
    assert imports("from ..r import s", "p.q") == [("p.r", ["s"])]


def test_all_packages_are_read():
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(PACKAGES)


@every_module
def test_dependencies_point_one_way(path):
    package = path.relative_to(ROOT).parts[0]
    others = (packages_of(imports_of(path)) & set(PACKAGES)) - {package}
    assert others <= MAY_IMPORT[package]


READOUT = ("calibrate_readout", "mitigate_probabilities", "mitigate_z")


def test_hybrid_attention_uses_devices_through_one_small_interface():
    users = {}
    for path in (ROOT / "hybrid_attention").rglob("*.py"):
        for module, names in imports_of(path):
            if module.split(".")[0] == "devices":
                users.setdefault(path.name, []).append((module, names))
    assert set(users) == {"circuits.py", "annealing.py"}
    for module, names in users["circuits.py"] + users["annealing.py"]:
        assert module == "devices"
        assert set(names) <= {"DQA", "make_device", "samples_only", *READOUT}


@pytest.mark.parametrize("path", [*MODULES, *OTHERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_pytorch_lightning_is_imported_rather_than_lightning(path):
    assert "lightning" not in packages_of(imports_of(path))


@every_module
def test_no_module_is_a_drawer_for_everything_or_longer_than_400_lines(path):
    assert path.stem not in ("utils", "util", "helpers", "common", "misc")
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_of_the_kernels_is_longer_than_400_lines_and_each_is_built(path):
    assert len(path.read_text().splitlines()) <= 400
    assert f"hybrid_attention/native/{path.name}" in (ROOT / "pyproject.toml").read_text()


@every_module
def test_no_module_shadows_a_library(path):
    """A folder on the path such as datasets or lightning would hide the library of that name."""
    top = path.relative_to(ROOT).parts[0]
    assert top not in ("datasets", "lightning", "torch", "pennylane")
    assert path.stem not in ("datasets", "torch", "pennylane")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycle_inside_a_package(package):
    """Modules import from modules, never from the package that imports them."""
    edges = {}
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found = set()
        for module, names in imports_of(path):
            candidates = [f"{module}.{n}" for n in names or []]
            inside = [c for c in candidates if (ROOT / (c.replace(".", "/") + ".py")).exists()]
            found |= set(inside) or {module}
        edges[name] = {module for module in found if module.split(".")[0] == package}

    def walk(name, trail):
        assert name not in trail, " -> ".join((*trail, name))
        for other in edges.get(name, ()):
            walk(other, (*trail, name))

    for name in edges:
        walk(name, ())
