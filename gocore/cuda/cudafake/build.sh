#!/bin/sh
# build.sh OUT.so: the fake CUDA driver (see driver/fake.h), with the library's kernels inside. Needs gcc alone, or
# the compiler in CC, which may be several words.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-gcc}
work=$(mktemp -d)
compilers=
trap 'rm -rf "$work"' EXIT
for source in "$here"/driver/*.c; do
	$cc -std=gnu11 -O1 -g -fPIC -pthread -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter -Werror \
		-c "$source" -o "$work/$(basename "$source" .c).o" &
	compilers="$compilers $!"
done
for source in "$here"/driver/*.cu "$here"/../kernels/*.cu; do
	$cc -std=gnu11 -O2 -fPIC -ffp-contract=off -fno-strict-aliasing -include "$here/driver/kernel_host.h" \
		-I"$here/../kernels" -x c -c "$source" -o "$work/kernel_$(basename "$source" .cu).o" &
	compilers="$compilers $!"
done
for compiler in $compilers; do
	wait "$compiler"
done
# Under its name at once, so that a process never sees half of it.
$cc -shared -pthread -Wl,-z,defs -Wl,-soname,libcuda.so.1 -o "$work/libcuda.so" "$work"/*.o -ldl
mkdir -p "$(dirname "$1")"
cp "$work/libcuda.so" "$1.$$"
mv "$1.$$" "$1"
