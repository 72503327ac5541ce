# In a repository of Spack: packages/py_paddlempi/package.py
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyPaddlempi(PythonPackage):
    """MPI for the stock PaddlePaddle and PyTorch wheels."""

    homepage = "https://github.com/paddlempi/paddlempi"
    git = "https://github.com/paddlempi/paddlempi.git"

    license("Apache-2.0")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("go@1.24:", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("mpi", type="run")  # found when a program runs: no compiler sees it

    import_modules = ["paddlempi"]

    def setup_run_environment(self, env):
        env.set("PADDLEMPI_MPI", join_path(self.spec["mpi"].prefix.lib, "libmpi.so"))
