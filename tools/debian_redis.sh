#!/bin/sh
# tools/debian_redis.sh ENVIRONMENT: unpack Debian's redis-server into ENVIRONMENT/redis without installing it, and write
# ENVIRONMENT/bin/redis-server, which starts it from there. If apt cannot download it, print the reason and exit with
# status 3: the benchmark then leaves Redis out.
set -eu

cannot() {
    echo "Debian's redis-server: $1"
    exit 3
}

cd "$1"
command -v apt-get >/dev/null && command -v dpkg >/dev/null || cannot "no apt on this machine"
# redis-tools has the program, and the libraries are the two that a small Debian does not have.
packages="redis-server redis-tools liblzf1 libjemalloc2"
if ! apt-cache show $packages >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] || cannot "apt does not know it, and only root can run apt-get update"
    timeout 120 apt-get update --quiet >/dev/null 2>&1 || cannot "apt-get update failed"
fi
rm -rf redis
mkdir -p redis/archives
# As root, apt would download as the user _apt, which may not write here.
(cd redis/archives && timeout 300 apt-get download --quiet -o APT::Sandbox::User=root $packages >/dev/null 2>&1) ||
    cannot "apt-get download failed"
for archive in redis/archives/*.deb; do
    dpkg -x "$archive" redis
done
rm -r redis/archives
cat >bin/redis-server <<'END'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/../redis
for library in "$root"/usr/lib/*-linux-gnu; do
    LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH
exec "$root/usr/bin/redis-server" "$@"
END
chmod +x bin/redis-server
