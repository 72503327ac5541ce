#!/bin/sh
# tools/debian_mpi.sh FOLDER: unpacks Debian's Open MPI 4.1 and MPICH 4.0 into FOLDER, without installing them, so
# that the two sit beside each other and the machine stays as it was. Status 3, with the reason as the last
# line, where this machine's apt cannot give them.
set -eu

folder=$1
packages="openmpi-bin libopenmpi3 mpich libmpich12"

cannot() {
    echo "Debian's MPIs: $1"
    exit 3
}

command -v apt-get >/dev/null && command -v dpkg >/dev/null || cannot "no apt on this machine"
# What the packages need beyond what is installed already; --no-install-recommends keeps compilers out.
wanted() {
    apt-get install --simulate --no-install-recommends --quiet $packages 2>/dev/null | awk '/^Inst/ {print $2}'
}
if ! list=$(wanted) || [ -z "$list" ]; then
    [ "$(id -u)" = 0 ] || cannot "apt does not know openmpi-bin and mpich, and only root can run apt-get update"
    timeout 120 apt-get update --quiet >/dev/null 2>&1 || cannot "apt-get update failed"
    list=$(wanted) || cannot "apt cannot resolve: $packages"
fi
# Installed ones are not in the list, but their files are wanted in the folder too.
list=$(printf '%s\n' $list $packages | sort -u)

rm -rf "$folder"
mkdir -p "$folder/archives"
cd "$folder/archives"
# As root apt drops to the user _apt, who may not write here.
timeout 300 apt-get download --quiet -o APT::Sandbox::User=root $list >/dev/null 2>&1 || cannot "apt-get download failed"
for archive in *.deb; do
    dpkg -x "$archive" ..
done
cd ..
rm -r archives

# Names that no package holds: one that installing would have made, and the one under which mpi4py's wheel asks for
# any MPICH.
mkdir -p links/openmpi links/mpich
ln -sf ../../usr/lib/libpsm1/libpsm_infinipath.so.1.16 links/openmpi/libpsm_infinipath.so.1
ln -sf "$(cd usr/lib/*-linux-gnu && pwd)/libmpich.so.12" links/mpich/libmpi.so.12
