#!/bin/sh
# Usage: rootfs.sh ROOT VENV. Makes the file system of an image in the folder ROOT: the virtual environment VENV, the
# Python it was made with, the libraries that these load, and for each Debian package in it its licence and its entry
# for scanners. Runs as root in the Debian that all this comes from.
set -eu
root=$1 venv=$2

python=$(readlink -f "$venv/bin/python3")
stdlib=/usr/lib/${python##*/}
mkdir -p "$root/etc/ssl/certs" "$root/etc/brokerside" "$root/tmp" "$root/usr/bin" "$root/usr/lib" "$root/usr/lib64" \
  "$root/var/lib/dpkg/status.d"
chmod 1777 "$root/tmp"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"

# Python and the environment, without what a server never imports.
cp -a "$python" /usr/bin/python3 "$root/usr/bin/"
mkdir -p "$root${venv%/*}"
cp -a "$stdlib" "$root$stdlib"
cp -a "$venv" "$root$venv"
cd "$root$stdlib"
rm -rf config-* curses dbm ensurepip idlelib lib2to3 pydoc_data sqlite3 test tkinter turtledemo venv
rm -rf lib-dynload/_curses* lib-dynload/_*dbm* lib-dynload/_sqlite3* lib-dynload/_tkinter* lib-dynload/nis.* \
  lib-dynload/ossaudiodev.* lib-dynload/readline.* lib-dynload/_test* lib-dynload/_ctypes_test* lib-dynload/xx*
rm -rf "$root$venv"/include "$root$venv"/bin/[Aa]ctivate* "$root$venv"/.lock
find "$root$venv" -name '*.so*' -type f -exec strip --strip-unneeded {} +

# The libraries that all this is linked to, and the one that ending a thread loads.
gcc_s=$(ldconfig -p | sed -n 's/.*libgcc_s\.so\.1 .*=> //p' | head -n 1)
missing=$(find "$root" -type f \( -name '*.so*' -o -path '*/bin/python*' \) -exec ldd {} + | grep 'not found' || true)
test -z "$missing" || { echo "rootfs.sh: missing libraries: $missing" >&2; exit 1; }
{
  find "$root" -type f \( -name '*.so*' -o -path '*/bin/python*' \) -exec ldd {} + | grep -o '/[^ ]*' | grep -v ':$'
  echo "$gcc_s"
} | grep -v "^$root" | sort -u > /tmp/libraries
while read -r library; do
  to=$root/usr${library#/usr}
  mkdir -p "${to%/*}"
  cp -L "$library" "$to"
done < /tmp/libraries

# Who it runs as, what it trusts, and what it is.
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
cp -L /etc/os-release "$root/etc/"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
printf 'root:x:0:0::/:/sbin/nologin\nbrokerside:x:65532:65532::/:/sbin/nologin\n' > "$root/etc/passwd"
printf 'root:x:0:\nbrokerside:x:65532:\n' > "$root/etc/group"

# Files of Debian packages, their licences, and their entries as scanners look for them.
{
  while read -r library; do dpkg -S "$(readlink -f "$library")" "$library" 2>/dev/null || true; done < /tmp/libraries
  dpkg -S "$python" "$stdlib/os.py" "$stdlib/asyncio/__init__.py" /usr/share/doc/ca-certificates /usr/share/doc/base-files
} | grep -v '^diversion ' | sed 's/: .*//' | tr ',' '\n' | sed 's/^ *//; s/:.*//' | sort -u | while read -r package; do
  mkdir -p "$root/usr/share/doc/$package"
  cp -L "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/"
  dpkg -s "$package" > "$root/var/lib/dpkg/status.d/$package"
done

# Bytecode, which a read-only file system can take none of later; files keep it whatever their dates.
"$python" -m compileall -q -f --invalidation-mode unchecked-hash -s "$root" "$root$stdlib" "$root$venv"
