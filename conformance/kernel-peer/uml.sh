#!/bin/bash
# uml.sh: build a user mode kernel with rdma_rxe and siw in it, unless the cache has it, and print its path. Called by ./kernel-peer.
# uml.sh --find: print its path, or fail where the cache has none.
# It is a program of this machine: it needs neither KVM nor an emulator. Debian's own user-mode-linux has no RDMA.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${KERNEL_PEER_CACHE:-$HOME/.cache/kernel-peer}
suite=${KERNEL_PEER_UML_SUITE:-sid}         # since 6.19 such a kernel has processors, since 6.16 it runs programs under seccomp, not ptrace
. "$here/common.sh"

# What differs from tinyconfig, which has next to nothing: y, or n with a dash before it.
options=(
	64BIT SMP -CC_OPTIMIZE_FOR_SIZE CC_OPTIMIZE_FOR_PERFORMANCE HIGH_RES_TIMERS NO_HZ_IDLE PRINTK BUG KALLSYMS EARLY_PRINTK
	MULTIUSER SYSFS_SYSCALL FUTEX EPOLL SIGNALFD TIMERFD EVENTFD SHMEM MEMFD_CREATE AIO ADVISE_SYSCALLS MEMBARRIER POSIX_TIMERS POSIX_MQUEUE
	SYSVIPC FHANDLE FILE_LOCKING INOTIFY_USER CROSS_MEMORY_ATTACH COREDUMP NAMESPACES NET_NS UTS_NS PID_NS
	BINFMT_ELF BINFMT_SCRIPT -BLOCK BLK_DEV_INITRD -RD_GZIP -RD_BZIP2 -RD_LZMA -RD_XZ -RD_LZO -RD_LZ4 -RD_ZSTD
	PROC_FS PROC_SYSCTL SYSFS TMPFS DEVTMPFS TTY UNIX98_PTYS SSL NULL_CHAN STDERR_CONSOLE
	NET UNIX PACKET INET IPV6 IP_MULTICAST INET_DIAG UNIX_DIAG PACKET_DIAG
	-IPV6_SIT -ETHTOOL_NETLINK -PTP_1588_CLOCK NETDEVICES NET_CORE VETH VLAN_8021Q NET_SCHED NET_SCH_NETEM UML_NET_VECTOR
	VIRTIO_MENU VIRTIO_UML UML_PCI_OVER_VIRTIO  # no such device: but DMA and I/O memory, which INFINIBAND depends on
	INFINIBAND INFINIBAND_USER_ACCESS INFINIBAND_USER_MAD INFINIBAND_ADDR_TRANS INFINIBAND_ON_DEMAND_PAGING RDMA_RXE RDMA_SIW
)

build() (       # in the folder $1, of the source package $2
	set -e
	cd "$1"
	apt-get "${apt_opts[@]}" -qq download "$2"
	# Most of what other machines, cards and sounds need stays packed; of all, Kconfig's files and Makefiles are read.
	dpkg-deb --fsys-tarfile ./*.deb | tar -xO --wildcards "*/$2.tar.xz" | tar -xJ --strip-components=1 --exclude='*.dts*' \
		--exclude='*/tools/testing/*' --exclude='*/Documentation/*.rst' \
		--exclude-from=<(printf '*/%s/*.[ch]\n' sound drivers/{gpu,media,staging,net/ethernet,net/wireless,scsi,iio,usb})
	rm ./*.deb
	# A clock as fine as that of other kernels: 100 Hz is fixed.
	sed -i '/^config HZ$/,/default/s/default 100$/default 1000/' arch/um/Kconfig
	# A tap takes one packet a call and has no queues. Only a kernel of one processor, whose locks are nothing, may lock them all the same.
	sed -i -E 's/spin_(un)?lock\(&vp->([rt]x)_queue->head_lock\);/if (vp->\2_queue) &/' arch/um/drivers/vector_kern.c
	# A tap sends SIGIO before it wakes epoll, and no signal follows: a handler that finds nothing by epoll reads each device by itself.
	sed -i '/^static void _sigio_handler(/,/^}/ {
		s/^\tstruct irq_entry \*irq_entry;/&\n\tbool found = false;/
		s/^\t\tfor (i = 0; i < n ; i++) {/\t\tfound = true;\n&/
		s/^\tif (!timetravel_handlers_only)$/\tif (!found \&\& !timetravel_handlers_only)\n\t\tlist_for_each_entry(irq_entry, \&active_fds, list)\n\t\t\tif (irq_entry->reg[IRQ_READ].events)\n\t\t\t\tirq_io_loop(\&irq_entry->reg[IRQ_READ], regs);\n&/
	}' arch/um/kernel/irq.c
	[ "$(grep -c '\bfound\b' arch/um/kernel/irq.c)" = 3 ] || { echo "irq.c is another one"; exit 1; }
	make=(nice make -j"$(nproc)" ARCH=um SUBARCH=x86_64)
	"${make[@]}" tinyconfig
	for o in "${options[@]}"; do
		case $o in -*) scripts/config -d "${o#-}" ;; *) scripts/config -e "$o" ;; esac
	done
	"${make[@]}" olddefconfig
	for o in "${options[@]}"; do
		case $o in -*) grep -q "^CONFIG_${o#-}=y" .config && { echo "$o is not off"; exit 1; } ;;
		*) grep -q "^CONFIG_$o=y" .config || { echo "there is no $o"; exit 1; } ;; esac
	done
	"${make[@]}" linux
	strip linux
)

U=$cache/uml
mkdir -p "$U"
key=$( (echo "$suite ${options[*]}"; declare -f build) | sha256sum | cut -c1-16)
built() { find "$U" -name "linux-*-$key" | sort | tail -1; }
[ -z "$(built)" ] || { built; exit; }
[ "${1:-}" != --find ] || exit 1
exec 9> "$U/lock"; flock 9
[ -z "$(built)" ] || { built; exit; }
failed=$U/failed-$key log=$U/build.log
fail() { say "no user mode kernel: $*"; exit 1; }
# What failed takes as long to fail again.
[ -z "$(find "$failed" -mmin -1440 2>/dev/null)" ] || fail "its build failed today (see $failed; it is tried again tomorrow, or when that is gone)"
rm -rf "$U"/build.* "$failed"
W=$(mktemp -d "$U/build.XXXXXX"); trap 'rm -rf "$W"' EXIT
[ "$(uname -m)" = x86_64 ] || fail "this machine is no x86-64"
have gcc libc6-dev make flex bison bc xz-utils || fail "packages cannot be installed"
private_apt "$W" "$suite" || fail "packages of $suite cannot be listed"
pkg=$(apt-cache "${apt_opts[@]}" depends linux-source | awk '/Depends: linux-source-[0-9]/ {print $2; exit}')
[ -n "$pkg" ] || fail "$suite has no linux-source"
say "building a user mode kernel of $pkg: some minutes, once"
build "$W" "$pkg" > "$log" 2>&1 < /dev/null &        # not in a condition, where set -e does nothing
wait $! || { mv "$log" "$failed"; tail -5 "$failed" >&2; fail "its build failed: $failed"; }
linux=$U/linux-$(make -s -C "$W" ARCH=um kernelversion)-$key
mv "$W/linux" "$linux"
say "ready: ${linux##*/}, after $SECONDS s"
echo "$linux"
