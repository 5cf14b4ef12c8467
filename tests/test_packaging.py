"""What is installed: the schema and the types are in it, and it works without the checkout."""

from __future__ import annotations

import os
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run with the caller's environment, but none of this checkout in it."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NOTIFYCTL"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environ, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that can build; skipped where there is no package index."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    found = subprocess.run(
        [folder / "bin/python", "-m", "pip", "install", "-q", "hatchling"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip("no package index can be reached")
    return folder / "bin/python"


@pytest.fixture(scope="module")
def sdist(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(python, "-c", f"import hatchling.build; hatchling.build.build_sdist({str(folder)!r})", cwd=ROOT)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(python: Path, sdist: Path) -> Path:
    """Built from the source distribution, as a packager does."""
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", sdist.parent, sdist, cwd=sdist.parent)
    return next(sdist.parent.glob("*.whl"))


def test_the_source_distribution_holds_what_is_needed_to_build_test_and_read_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "ls-files", cwd=ROOT).stdout.split() if (ROOT / ".git").exists() else []
    wanted = {name for name in tracked if not name.startswith(".")} or {"notifyctl/__init__.py", "README.md"}
    assert sorted(name for name in wanted - names if (ROOT / name).exists()) == []


def test_the_wheel_holds_every_module_the_schema_and_the_types_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    schema = {f"notifyctl/{path.relative_to(ROOT)}" for path in ROOT.glob("schema/*/*.sql")}
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("notifyctl/**/*.py")}
    assert len(schema) >= 2
    assert sorted((schema | modules | {"notifyctl/py.typed"}) - names) == []
    assert [name for name in names if name.startswith("tests/")] == []


def test_the_installed_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=True)
    programs = tmp_path / "environment/bin"
    run(programs / "pip", "install", "-q", wheel, cwd=tmp_path)
    where = run(programs / "python", "-c", "import notifyctl; print(notifyctl.__file__)", cwd=tmp_path).stdout
    assert where.startswith(str(tmp_path / "environment"))
    run(programs / "notifyctl", "init", cwd=tmp_path)
    run(programs / "notifyctl", "template", "publish", cwd=tmp_path)
    assert (tmp_path / "notifyctl.db").exists()
    run(programs / "notifyctl", "demo", "story", cwd=tmp_path)
    assert list((tmp_path / "story").glob("**/mail/new/*"))
