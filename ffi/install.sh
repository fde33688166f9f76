#!/bin/sh
# Installs the C library, the libraries for MLX and the command:
# install.sh BUILD PREFIX [DESTDIR [SYSTEM OBJCOPY PROGRAM]]
#
# BUILD is cargo's output folder, as target/dist. SYSTEM (Linux or Darwin), OBJCOPY, a program that strips its
# files, and PROGRAM, a `tbccl` that runs here, are for builds for another machine. `make install`, `make deb`
# and `make archive` run this script: it is the one list of the files of an installation.
set -eu

usage="install.sh BUILD PREFIX [DESTDIR [SYSTEM OBJCOPY PROGRAM]]"
build=${1:?$usage}
prefix=${2:?$usage}
root=${3:-}$prefix
system=${4:-$(uname -s)}
objcopy=${5:-}
program=${6:-$root/bin/tbccl}
here=$(cd "$(dirname "$0")" && pwd)

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -n 1)
major=${version%%.*}
rest=${version#*.}
minor=${rest%%.*}

# Names of the shared library, and the libraries that programs with libtbccl.a link in addition.
case $system in
Darwin)
    built=libtbccl_c.dylib mpi=libtbccl_mpi.dylib jaccl=libjaccl.dylib
    shared=libtbccl.$version.dylib soname=libtbccl.$major.dylib plain=libtbccl.dylib
    private="-lSystem -lc -lm -framework CoreFoundation"
    ;;
*)
    built=libtbccl_c.so mpi=libtbccl_mpi.so jaccl=libjaccl.so
    shared=libtbccl.so.$version soname=libtbccl.so.$major plain=libtbccl.so
    private="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"
    ;;
esac

fill() {
    sed -e "s|@VERSION@|$version|g; s|@MAJOR@|$major|g; s|@MINOR@|$minor|g" \
        -e "s|@PRIVATE@|$private|g; s|@SHARED@|$shared|g; s|@SONAME@|$soname|g" "$1" >"$2"
}

mkdir -p "$root/bin" "$root/lib/pkgconfig" "$root/lib/tbccl" "$root/lib/cmake/tbccl" "$root/include"

# Writes a file beside its destination and then renames it, so that running programs keep the old one.
install_file() {
    cp "$2" "$3.new"
    chmod "$1" "$3.new"
    mv "$3.new" "$3"
}

# As install_file, after stripping. Programs and shared libraries lose symbols and debug information. A static
# library loses only its debug information, since linkers need its symbols.
install_stripped() {
    cp "$2" "$3.new"
    chmod u+w "$3.new"
    case $objcopy:$system:$3 in
    :*.a) strip -S "$3.new" ;;
    :Darwin:*) strip -x "$3.new" ;;
    :*) strip --strip-unneeded "$3.new" ;;
    *.a) "$objcopy" --strip-debug "$3.new" ;;
    *:Darwin:*) "$objcopy" --strip-debug --discard-all "$3.new" ;;
    *) "$objcopy" --strip-unneeded "$3.new" ;;
    esac
    chmod "$1" "$3.new"
    mv "$3.new" "$3"
}
install_stripped 755 "$build/tbccl" "$root/bin/tbccl"
install_stripped 755 "$build/$built" "$root/lib/$shared"
install_stripped 755 "$build/$mpi" "$root/lib/$mpi"
# In a folder of its own: programs find it only where they are told to.
install_stripped 755 "$build/$jaccl" "$root/lib/tbccl/$jaccl"
install_stripped 644 "$build/libtbccl_c.a" "$root/lib/libtbccl.a"
install_file 644 "$here/tbccl.h" "$root/include/tbccl.h"
install_file 644 "$here/tbccl.hpp" "$root/include/tbccl.hpp"
ln -sf "$shared" "$root/lib/$soname"
ln -sf "$soname" "$root/lib/$plain"
fill "$here/tbccl.pc.in" "$root/lib/pkgconfig/tbccl.pc"
for name in tbccl-config tbccl-config-version; do
    fill "$here/cmake/$name.cmake.in" "$root/lib/cmake/tbccl/$name.cmake"
done

# Completions and man pages are written by the program, which is the same on all systems.
completions() {
    mkdir -p "$root/share/$2"
    "$program" completions "$1" >"$root/share/$2/$3"
}
completions bash bash-completion/completions tbccl
completions zsh zsh/site-functions _tbccl
completions fish fish/vendor_completions.d tbccl.fish
"$program" man "$root/share/man/man1"
