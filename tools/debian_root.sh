#!/bin/sh
# tools/debian_root.sh FOLDER ARCHITECTURE SUITE PACKAGE ...: unpack Debian's packages, and all that they need, into
# FOLDER. Nothing is installed, and apt's own state does not change: this has a state of its own, in which no package is
# installed. SUITE is a release, as bullseye, or - for the one that this machine uses. If apt cannot download them, exit
# with status 3 and the reason as the last line.
set -eu

folder=$1 architecture=$2 suite=$3
shift 3

cannot() {
    echo "Debian's $* for $architecture: $reason"
    exit 3
}

reason="no apt on this machine"
command -v apt-get >/dev/null && command -v dpkg >/dev/null || cannot "$@"
rm -rf "$folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
state=$folder.apt
rm -rf "$state"
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/lists/partial" "$state/archives/partial" "$state/sources"
: >"$state/status"
cat >"$state/apt.conf" <<EOF_APT
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::State "$state";
Dir::State::status "$state/status";
Dir::Cache "$state";
EOF_APT
if [ "$suite" != - ]; then
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main" >"$state/sources.list"
    cat >>"$state/apt.conf" <<EOF_APT
Dir::Etc::sourcelist "$state/sources.list";
Dir::Etc::sourceparts "$state/sources";
EOF_APT
fi
export APT_CONFIG="$state/apt.conf"

reason="apt-get update failed"
timeout 120 apt-get update --quiet >/dev/null 2>&1 || cannot "$@"
reason="apt cannot resolve it"
list=$(apt-get install --simulate --no-install-recommends --quiet "$@" 2>/dev/null | awk '/^Inst/ {print $2}')
[ -n "$list" ] || cannot "$@"
reason="apt-get download failed"
cd "$state/archives"
timeout 300 apt-get download --quiet $list >/dev/null 2>&1 || cannot "$@"
for archive in *.deb; do
    dpkg -x "$archive" "$folder"
done
