#!/bin/sh
# tools/debian_arm64.sh FOLDER: unpack Debian's arm64 Python into FOLDER/root, and qemu-user, which runs it, as
# FOLDER/qemu-aarch64-static. If that cannot be, exit with status 3 and the reason as the last line.
set -eu

here=$(dirname "$0")
if [ "$(uname -m)" != x86_64 ]; then
    echo "qemu runs it on x86-64 only; on aarch64 the ordinary tests are these"
    exit 3
fi
rm -rf "$1"
mkdir -p "$1"
"$here/debian_root.sh" "$1/root" arm64 - python3 libstdc++6
# Linked statically, so that it needs no library of another Debian.
"$here/debian_root.sh" "$1/qemu" amd64 - qemu-user-static
mv "$1/qemu/usr/bin/qemu-aarch64-static" "$1"
rm -r "$1/qemu"
