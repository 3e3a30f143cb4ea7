# What build.sh and uml.sh have in common; they source it. Needs: cache, the folder that all is kept in.
say() { echo "kernel-peer: $*" >&2; }

# have PACKAGE...: installs those packages of this machine's own release that are missing.
have() {
	local missing=() p
	for p; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	say "installing ${missing[*]}"
	inst() { DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" > "$cache/apt.log" 2>&1; }
	inst || { apt-get update -qq >> "$cache/apt.log" 2>&1; inst; } || { tail -5 "$cache/apt.log" >&2; return 1; }
}

# private_apt DIR SUITE: an apt state in DIR/apt for another suite, at the mirror this machine already uses. Its options are in apt_opts.
private_apt() {
	local D=$1 suite=$2 codename uri
	apt_opts=(-o "Dir::Etc::SourceList=$D/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$D/apt/lists"
	          -o "Dir::Cache=$D/apt/cache" -o APT::Sandbox::User=root -o Dir::Etc::PreferencesParts=/dev/null -o "Dir::State::status=$D/apt/status")
	[ ! -e "$D/apt/ok" ] || return 0
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	uri=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' | awk -v c="$codename" '$1 == c && $2 == "main" {print $3; exit}')
	[ -n "$uri" ] || { say "no apt source for $codename main found on this machine"; return 1; }
	mkdir -p "$D/apt/lists/partial" "$D/apt/cache/archives/partial"
	: > "$D/apt/status"             # nothing counts as installed
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" > "$D/apt/sources.list"
	apt-get "${apt_opts[@]}" -qq update || return 1
	touch "$D/apt/ok"
}
