#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# kvm doctor under several kinds of host. Prints "ok" and "not ok" lines; ends with 0 when none failed, else 1.
# KVM names the program (default: ./kvm at the top of the tree).
top=$(cd "$(dirname "$0")/../.." && pwd)
kvm=$(readlink -f "${KVM:-$top/kvm}")
runs='a Linux guest will run here'
runs_not='a Linux guest will not run here: '
n=0 failed=0 out="" status=""

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
install -m 755 "$kvm" "$tmp/kvm" || exit 1 # where any user reaches it
cd "$tmp" || exit 1

pass() { n=$((n + 1)); echo "ok $n - $1"; }
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
fail() {
	n=$((n + 1)) failed=$((failed + 1))
	echo "not ok $n - $1"
	echo "# status $status"
	sed 's/^/# /' <<<"$out"
}

# run COMMAND...: its output and status
run() { out=$(timeout 60 "$@" 2>&1 </dev/null); status=$?; }

# check NAME STATUS REGEXP...: what the last run left, each REGEXP in a line of its own
check() {
	local name=$1 want=$2 re
	shift 2
	[ "$status" = "$want" ] || { fail "$name: status $want"; return; }
	for re; do
		grep -qE -- "$re" <<<"$out" || { fail "$name: $re"; return; }
	done
	pass "$name"
}

# Aligned lines, the verdict last and once, the status that goes with it.
check_form() {
	local last body want=1
	last=${out##*$'\n'} body=${out%$'\n'*}
	[ "$last" = "$runs" ] && want=0
	if grep -qvE '^(ok  |warn|fail)  [^ ].*  [^ ]' <<<"$body" || [ "$status" != $want ] ||
	   { [ $want = 1 ] && [[ $last != "$runs_not"?* ]]; } ||
	   { grep -q '^fail' <<<"$body"; [ $? = $want ]; }; then
		fail "$1: form"
	else
		pass "$1: form"
	fi
}

# in_dev SCRIPT [WORD...]: as root, with a /dev of our own, which SCRIPT (sh) fills
in_dev() {
	run unshare -m sh -c 'mount -t tmpfs -o mode=755 none /dev || exit 99; set -e; '"$1" sh "$tmp/kvm" doctor
}

native=no usable=no
grep -qwE 'vmx|svm' /proc/cpuinfo && native=yes
(: <>/dev/kvm) 2>/dev/null && usable=yes
here=1 # the status to expect
[ $usable$native = yesyes ] && here=0

run "$tmp/kvm" doctor
check_form 'this host'
case $usable$native in
yesyes) check 'this host runs Linux guests' 0 '^ok +guest kernel code +runs on the processor \((VMX|SVM)\)$' ;;
yesno) check 'this host interprets' 1 '^ok +/dev/kvm +API 12$' '^fail +guest kernel code +.*interprets.*VT-x' ;;
*) check 'this host has no usable /dev/kvm' 1 '^fail +/dev/kvm ' ;;
esac

text=$out
run "$tmp/kvm" doctor --json
echo "$out" >json
if /usr/bin/python3 - json "$text" "$status" <<'PY'; then
import json, sys
d = json.load(open(sys.argv[1]))
text = sys.argv[2].splitlines()
assert d["verdict"] == text[-1] and d["linux"] == (sys.argv[3] == "0")
assert len(d["checks"]) == len(text) - 1
for c, line in zip(d["checks"], text):
    tail = c["found"] + (": " + c["remedy"] if c["remedy"] else "")
    assert line.split()[0] == c["level"] and c["name"] in line
    assert line.endswith(tail) or c["name"] == "hugepages"  # their number changes
PY
	pass '--json says the same'
else
	fail '--json says the same'
fi

for bad in --nonsense -x --json=1 word; do
	run "$tmp/kvm" doctor "$bad"
	check "usage: $bad" 2 "^kvm: .*${bad#-}.*kvm help doctor"
done

if [ -w /dev/full ]; then
	out=$("$tmp/kvm" doctor 2>&1 >/dev/full) status=$?
	check 'full standard output' 1 'No space left'
else
	skip 'full standard output' 'no /dev/full'
fi

if [ "$(id -u)" != 0 ] || ! unshare -m true 2>/dev/null; then
	for name in 'hidden /dev' 'a wrong /dev/kvm' 'permission: group' 'permission: root only' 'unprivileged'; do
		skip "$name" 'needs root'
	done
else
	in_dev 'exec "$@"'
	check 'hidden /dev' 1 '^fail +/dev/kvm +not there: (modprobe kvm-|needs )' '^warn +/dev/net/tun +not there: modprobe tun' \
		"^${runs_not}/dev/kvm: not there\$"
	check_form 'hidden /dev'

	in_dev 'mknod -m 666 /dev/kvm c 1 3; exec "$@"'
	check 'a wrong /dev/kvm' 1 "^fail +/dev/kvm +is not KVM's device" "^${runs_not}/dev/kvm: "

	drop='exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
	in_dev "mknod -m 660 /dev/kvm c 10 232; chgrp daemon /dev/kvm; $drop"
	check 'permission: group' 1 '^fail +/dev/kvm +permission denied: join its group .*usermod -aG daemon ' \
		"^${runs_not}/dev/kvm: permission denied\$"
	check_form 'permission: group'

	in_dev "mknod -m 600 /dev/kvm c 10 232; $drop"
	check 'permission: root only' 1 '^fail +/dev/kvm +permission denied: .*setfacl '

	if [ $usable = yes ]; then
		in_dev "mknod -m 666 /dev/kvm c 10 232; $drop"
		check 'unprivileged' $here '^ok +/dev/kvm +API 12$' \
			'^(ok  |fail) +guest kernel code '
	else
		skip 'unprivileged' 'no usable /dev/kvm'
	fi
fi

if unshare -U true 2>/dev/null; then
	run unshare -Ur sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$1" doctor' sh "$tmp/kvm"
	check 'no user namespaces' $status '^warn +user namespaces +.*: sysctl user.max_user_namespaces='
else
	skip 'no user namespaces' 'there are none anyway'
fi

# Where Linux guests run already, the lab adds nothing.
if [ $here = 0 ]; then
	skip 'lab' 'this host runs Linux guests'
elif ! command -v qemu-system-x86_64 >/dev/null; then
	skip 'lab' 'qemu-system-x86 is missing'
else
	cd "$top" || exit 1
	out=$(timeout 400 "$top/tests/lab/lab" "$kvm" doctor 2>&1 </dev/null) status=$?
	check 'lab' 0 '^ok +guest kernel code +runs on the processor \(SVM\)$' "^$runs\$" \
		'^ok +/dev/vhost-net ' '^ok +/dev/vhost-vsock ' '^ok +/dev/net/tun ' '^ok +io_uring '
fi

echo "1..$n"
[ $failed = 0 ]
