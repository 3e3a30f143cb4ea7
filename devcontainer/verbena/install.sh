#!/bin/sh
# Installs Verbena into an image, as root: a feature of a dev container, whose options come in the environment.
#   PACKAGE       the .deb or .tar.gz that ./dist makes: a URL or a path
#   REPOSITORY    without PACKAGE: the git repository, or the directory, to build from by cargo
#   DEVELOPMENT   true, the default: Debian's programs and headers of rdma-core, too
set -eu
package=${PACKAGE:-} repository=${REPOSITORY:-} development=${DEVELOPMENT:-true}

die() { echo "verbena: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "install.sh writes to /usr and needs root"

# The lists of packages are fetched once, and only where something is installed.
updated=
apt() {
	[ -n "$updated" ] || apt-get update -qq
	updated=yes
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $package in
http://* | https://*)
	file=$work/${package##*/}
	command -v curl > /dev/null || apt curl ca-certificates
	curl -fsSL -o "$file" "$package" || die "cannot download $package"
	;;
*) file=$package ;;
esac
case $file in
'')
	[ -n "$repository" ] || die "say where it comes from: the option package or repository"
	# Where the feature for Rust puts it.
	PATH=$PATH:/usr/local/cargo/bin
	command -v cargo > /dev/null || die "building from $repository needs Rust: https://rustup.rs"
	if [ -d "$repository" ]; then
		cargo install --locked --root /usr/local --path "$repository/crates/cli"
	else
		cargo install --locked --root /usr/local --git "$repository" verbena-cli
	fi
	;;
*.deb)
	[ -f "$file" ] || die "there is no $file"
	cp "$file" "$work/verbena.deb"
	chmod -R a+rX "$work" # apt's own user reads it
	command -v apt-get > /dev/null || die "$file is for Debian; take the .tar.gz"
	apt "$work/verbena.deb"
	;;
*.tar.gz)
	[ -f "$file" ] || die "there is no $file"
	tar xzf "$file" --strip-components 1 --no-same-owner -C /usr/local
	;;
*) die "$file is neither a .deb nor a .tar.gz" ;;
esac

if [ "$development" = true ]; then
	if command -v apt-get > /dev/null; then
		apt ibverbs-utils rdmacm-utils libibverbs-dev librdmacm-dev
	else
		echo "verbena: left out: rdma-core's programs and headers (no apt-get)"
	fi
fi
rm -rf /var/lib/apt/lists/*
verbena --version
