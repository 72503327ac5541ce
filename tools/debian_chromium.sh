#!/bin/sh
# tools/debian_chromium.sh FOLDER: make FOLDER/chromium, which starts this machine's Chromium, or Debian's unpacked into
# FOLDER/root without installing it. If neither can be, exit with status 3 and the reason as the last line.
set -eu

here=$(dirname "$0")
rm -rf "$1"
mkdir -p "$1"
if installed=$(command -v chromium); then
    ln -s "$installed" "$1/chromium"
    exit
fi
# A font, so that text has a width.
architecture=$(dpkg --print-architecture 2>/dev/null || uname -m)
"$here/debian_root.sh" "$1/root" "$architecture" - chromium fonts-dejavu-core
cat >"$1/chromium" <<'END'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
for library in "$root"/usr/lib/*-linux-gnu "$root"/usr/lib/*-linux-gnu/pulseaudio "$root"/lib/*-linux-gnu; do
    LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH FONTCONFIG_SYSROOT="$root"
exec "$root/usr/lib/chromium/chromium" "$@"
END
chmod +x "$1/chromium"
