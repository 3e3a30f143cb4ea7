#!/bin/bash
# build.sh: fetch a Debian kernel and make the guest's initramfs, all inside the cache. Called by ./kernel-peer.
# Nothing is installed from another Debian release: its kernel package is only downloaded (with a private apt state) and unpacked.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${KERNEL_PEER_CACHE:-$HOME/.cache/kernel-peer}
suite=${KERNEL_PEER_SUITE:-trixie}          # trixie: 6.12; bookworm: 6.1
D=$cache/$suite
. "$here/common.sh"
mkdir -p "$D"
exec 9> "$cache/lock"; flock 9

# 1. packages of this machine's own release
need=(qemu-system-x86 busybox-static cpio zstd xz-utils kmod rdmacm-utils ibverbs-utils ibverbs-providers perftest
      rdma-core iproute2 strace tcpdump python3)
have "${need[@]}" || exit 1

# 2. the kernel
if [ ! -e "$D/kern/ok" ]; then
	say "fetching the $suite kernel"
	private_apt "$D" "$suite" || exit 1
	pkg=$(apt-cache "${apt_opts[@]}" depends linux-image-amd64 | awk '/Depends: linux-image-[0-9]/ {print $2; exit}')
	rm -rf "$D/kern"; mkdir -p "$D/kern"
	t=$(mktemp -d "$D/deb.XXXXXX")
	(cd "$t" && apt-get "${apt_opts[@]}" -qq download "$pkg" && dpkg -x ./*.deb "$D/kern")
	rm -rf "$t"
	[ -d "$D/kern/lib/modules" ] || { mkdir -p "$D/kern/lib"; ln -s ../usr/lib/modules "$D/kern/lib/modules"; }
	depmod -b "$D/kern" "${pkg#linux-image-}"
	ln -sf kern/boot/vmlinuz-"${pkg#linux-image-}" "$D/vmlinuz"
	echo "${pkg#linux-image-}" > "$D/kern/ok"
fi
V=$(cat "$D/kern/ok")

# 3. the initramfs; its name is a hash of all that it is made of
key=$( (cat "$here"/{build,common}.sh "$here"/guest/*; dpkg-query -W "${need[@]}" libc6; echo "$V") | sha256sum | cut -c1-16)
if [ ! -e "$D/initrd-$key" ]; then
	say "building the initramfs for $V"
	R=$(mktemp -d "$D/root.XXXXXX"); trap 'rm -rf "$R"' EXIT
	mkdir -p "$R"/{bin,etc/libibverbs.d,m,lib64,usr/lib}
	ln -s usr/lib "$R/lib"; ln -s bin "$R/sbin"; ln -s ../bin "$R/usr/bin"; ln -s ../bin "$R/usr/sbin"
	libs() { ldd "$@" 2>/dev/null | awk '$2 == "=>" {print $3} $1 ~ /^\/.*[^:]$/ {print $1}' | sort -u | while read -r l; do mkdir -p "$R${l%/*}"; cp -Lnu "$l" "$R$l"; done; }
	cp /bin/busybox "$R/bin/"
	cp /bin/dash "$R/bin/sh"                # not busybox's sh: it would prefer its own ip, ping... to the files in /bin
	progs=$( (echo /bin/dash; dpkg -L rdmacm-utils ibverbs-utils perftest | grep /bin/; command -v rdma ip tc ss strace tcpdump) | xargs -n1 readlink -f | sort -u | grep -v run_perftest)
	for p in $progs; do cp "$p" "$R/bin/"; done
	extra="$(ls /usr/lib/x86_64-linux-gnu/libibverbs/lib{rxe,siw}-*.so) /usr/libexec/coreutils/libstdbuf.so /usr/lib/x86_64-linux-gnu/libnss_files.so.2
		/lib/x86_64-linux-gnu/libgcc_s.so.1"        # what pthread_cancel needs
	for l in $extra; do mkdir -p "$R${l%/*}"; cp -Ln "$l" "$R$l"; done
	libs $progs $extra
	cp /etc/libibverbs.d/{rxe,siw}.driver "$R/etc/libibverbs.d/"
	cp "$here/guest/agent" "$R/bin/"; cp "$here/guest/init" "$R/init"; chmod +x "$R/init" "$R/bin/agent"
	echo "$V" > "$R/m/release"
	mods="virtio_pci virtio_net crc32_generic crc32_pclmul crc32c_generic libcrc32c ib_uverbs ib_umad rdma_ucm rdma_rxe sch_netem 8021q"
	for m in $mods; do modprobe -d "$D/kern" -S "$V" --show-depends "$m"; done | awk '/^insmod/ && !seen[$2]++ {print $2}' |
	while read -r f; do
		b=$(basename "$f"); k=${b%.ko*}.ko
		case $b in *.xz) xz -dc "$f" > "$R/m/$k" ;; *.zst) zstd -qdc "$f" > "$R/m/$k" ;; *) cp "$f" "$R/m/$k" ;; esac
		echo "$k" >> "$R/m/order"
	done
	(cd "$R" && find . | cpio -o -H newc --quiet > "$D/initrd.new")
	rm -f "$D"/initrd-*
	mv "$D/initrd.new" "$D/initrd-$key"
fi
say "ready: kernel $V, initramfs $(du -h "$D/initrd-$key" | cut -f1), in $D"
echo "$D/initrd-$key"
