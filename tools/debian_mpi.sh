#!/bin/sh
# tools/debian_mpi.sh FOLDER: unpack Debian's Open MPI 4.1 and MPICH 4.0 into FOLDER without installing them, so that
# the two do not conflict and the machine does not change. Write FOLDER/openmpi/mpirun and FOLDER/mpich/mpirun, which
# start them from there. If apt cannot download them, exit with status 3 and the reason as the last line.
set -eu

folder=$1
packages="openmpi-bin libopenmpi3 mpich libmpich12"

cannot() {
    echo "Debian's MPIs: $1"
    exit 3
}

command -v apt-get >/dev/null && command -v dpkg >/dev/null || cannot "no apt on this machine"
# The packages and those they need that are not installed; --no-install-recommends leaves out compilers.
wanted() {
    plan=$(apt-get install --simulate --no-install-recommends --quiet $packages 2>/dev/null) || return 1
    echo "$plan" | awk '/^Inst/ {print $2}'
}
if ! list=$(wanted); then
    [ "$(id -u)" = 0 ] || cannot "apt does not know openmpi-bin and mpich, and only root can run apt-get update"
    timeout 120 apt-get update --quiet >/dev/null 2>&1 || cannot "apt-get update failed"
    list=$(wanted) || cannot "apt cannot resolve: $packages"
fi

rm -rf "$folder"
mkdir -p "$folder/archives"
cd "$folder/archives"
# The four packages are downloaded even if they are installed, because their files must be in the folder. As root, apt
# would download as the user _apt, which may not write here.
timeout 300 apt-get download --quiet -o APT::Sandbox::User=root $(printf '%s\n' $list $packages | sort -u) >/dev/null 2>&1 ||
    cannot "apt-get download failed"
for archive in *.deb; do
    dpkg -x "$archive" ..
done
cd ..
rm -r archives

# Links that no package contains: two that an installation makes, and the name under which mpi4py's wheel looks for
# MPICH.
library=$(cd usr/lib/*-linux-gnu && pwd)
triplet=${library##*/}
mkdir openmpi mpich
ln -s orterun usr/bin/mpirun
ln -s ../usr/lib/libpsm1/libpsm_infinipath.so.1.16 openmpi/libpsm_infinipath.so.1
ln -s "../usr/lib/$triplet/libmpich.so.12" mpich/libmpi.so.12

launcher() { # NAME PROGRAM SETTINGS: write mpirun of MPI NAME; it may be called through links
    cat >"$1/mpirun" <<EOF
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
root=\${here%/*}
LD_LIBRARY_PATH=\$root/usr/lib/$triplet:\$root/lib/$triplet:\$here\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
$3
exec "\$root/usr/bin/$2" "\$@"
EOF
    chmod +x "$1/mpirun"
}
# Debian's settings, which are not below the prefix, turn off Open MPI's ofi transport, in which matched probes fail.
# PMIx is a library of its own, and warns if it does not find its plugin for compression.
launcher openmpi mpirun 'OPAL_PREFIX=$root/usr OPAL_SYSCONFDIR=$root/etc/openmpi
PMIX_PKGLIBDIR=$root/usr/lib/'"$triplet"'/pmix2/lib/pmix
export OPAL_PREFIX OPAL_SYSCONFDIR PMIX_PKGLIBDIR'
launcher mpich mpiexec.hydra 'MPI4PY_LIBMPI=$here/libmpi.so.12; export MPI4PY_LIBMPI'
