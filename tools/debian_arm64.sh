#!/bin/sh
# tools/debian_arm64.sh FOLDER: unpack Debian's arm64 Python into FOLDER/root, and qemu-user of this machine's Debian,
# which runs it, into FOLDER/qemu. Nothing is installed, and apt's own state does not change: the packages of the other
# architecture are found with a state of FOLDER's. If apt cannot download them, exit with status 3 and the reason as the
# last line.
set -eu

cannot() {
    echo "Debian's arm64 Python: $1"
    exit 3
}

command -v apt-get >/dev/null && command -v dpkg >/dev/null || cannot "no apt on this machine"
[ "$(dpkg --print-architecture)" = amd64 ] || cannot "qemu runs it on x86-64 only; on aarch64 the ordinary tests are these"
rm -rf "$1"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
mkdir -p "$folder/apt/state/lists/partial" "$folder/apt/cache/archives/partial" "$folder/archives" "$folder/qemu" "$folder/root"
cd "$folder/archives"

: >../apt/state/status # as if nothing was installed: a package comes with all that it needs
configure() { # ARCHITECTURE: let apt-get below use the lists and the cache of FOLDER
    cat >../apt/apt.conf <<EOF_APT
APT::Architecture "$1";
APT::Architectures { "$1"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::State "$folder/apt/state";
Dir::State::status "$folder/apt/state/status";
Dir::Cache "$folder/apt/cache";
EOF_APT
    export APT_CONFIG="$folder/apt/apt.conf"
    timeout 120 apt-get update --quiet >/dev/null 2>&1 || cannot "apt-get update failed for $1"
}
download() { # PACKAGES, then unpack them into the folder $into
    timeout 300 apt-get download --quiet "$@" >/dev/null 2>&1 || cannot "apt-get download failed: $*"
    for archive in *.deb; do
        dpkg -x "$archive" "../$into"
    done
    rm ./*.deb
}

configure arm64
list=$(apt-get install --simulate --no-install-recommends --quiet python3 libstdc++6 2>/dev/null | awk '/^Inst/ {print $2}')
[ -n "$list" ] || cannot "apt cannot resolve python3 for arm64"
into=root download $list

# Linked statically, so that it needs no library of another Debian.
configure amd64
into=qemu download qemu-user-static
cd ..
mv qemu/usr/bin/qemu-aarch64-static qemu/usr/bin/qemu-x86_64-static .
rm -r qemu apt archives
