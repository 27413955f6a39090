# SPDX-License-Identifier: GPL-2.0-or-later
# Front doors. Meson does the work; each door does its own set-up.
PREFIX ?= /usr/local
B := build/release

.PHONY: all run check check-long asan tsan lint layers fuzz bench install clean

all: kvm

kvm: FORCE
	@tests/setup build
	@test -f $B/build.ninja || meson setup $B --prefix=$(PREFIX) >/dev/null
	@ninja -C $B --quiet
	@ln -sf $B/kvm kvm
FORCE:

run: kvm
	@tests/demo/run
check: kvm
	@tests/check
check-long: kvm
	@tests/check --long
asan tsan:
	@tests/sanitize $@
lint: kvm
	@tests/lint
layers:
	@tests/layers
fuzz:
	@tests/fuzz/run
bench: kvm
	@bench/bench
install: kvm
	meson configure $B --prefix=$(PREFIX)
	meson install -C $B
clean:
	rm -rf build kvm
