// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/host.h"

#include "arch/arch.h"
#include "base/err.h"
#include "bus/gmem.h"
#include "kvm/vcpu.h"
#include "kvm/vm.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * How it works: a list of independent examinations, each of which adds one or
 * more checks. Where a kernel's setting does not decide alone (containers,
 * seccomp filters, security modules), the thing itself is tried: devices are
 * opened, a ring is set up, a child makes a namespace. Settings are only read
 * to find the remedy.
 */

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#define KVM_PATH     "/dev/kvm"
#define ELSEWHERE                                                                                        \
	"needs a host with VT-x or AMD-V, nested virtualization on in the outer hypervisor, or the lab " \
	"(tests/lab/lab)"
#define NEWER_KERNEL "use a newer host kernel"

void host_add(struct host_report *r, enum host_level level, const char *name, const char *remedy, const char *fmt, ...)
{
	struct host_check *c = &r->check[r->n];
	va_list ap;

	assert(r->n < HOST_MAX_CHECKS);
	r->n++;
	c->level = level;
	c->name = name;
	snprintf(c->remedy, sizeof(c->remedy), "%s", remedy ? remedy : "");
	va_start(ap, fmt);
	vsnprintf(c->found, sizeof(c->found), fmt, ap);
	va_end(ap);
}

const struct host_check *host_obstacle(const struct host_report *r)
{
	for (unsigned i = 0; i < r->n; i++)
		if (r->check[i].level == HOST_FAIL)
			return &r->check[i];
	return NULL;
}

/* Small files of /proc and /sys. */

/* The first line of @path; "" where there is none. */
static void read_line(const char *path, char *buf, size_t len)
{
	FILE *f = fopen(path, "re");

	if (!f || !fgets(buf, (int)len, f))
		buf[0] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	if (f)
		fclose(f);
}

/* The line of @path that starts with @key, without it; the caller frees it. NULL: there is none. */
static char *find_line(const char *path, const char *key)
{
	FILE *f = fopen(path, "re");
	char *line = NULL, *found = NULL;
	size_t size = 0, n = strlen(key);

	while (f && !found && getline(&line, &size, f) > 0)
		if (!strncmp(line, key, n))
			found = strdup(line + n);
	free(line);
	if (f)
		fclose(f);
	return found;
}

/* A line of /proc/meminfo, -1 where there is none. */
static long meminfo(const char *key)
{
	char *line = find_line("/proc/meminfo", key);
	long n = line ? atol(line) : -1;

	free(line);
	return n;
}

/* How the kernel calls the processor's virtualization, or NULL where it has none or has it switched off. */
static const char *virt_name(void)
{
	static const struct {
		const char *flag, *name;
	} kind[] = { { "vmx", "VMX" }, { "svm", "SVM" } };
	char *flags = find_line("/proc/cpuinfo", "flags"), *save = NULL;
	const char *name = NULL;

	for (char *w = flags ? strtok_r(flags, " \t:\n", &save) : NULL; w; w = strtok_r(NULL, " \t:\n", &save))
		for (unsigned i = 0; i < ARRAY_LEN(kind); i++)
			if (!strcmp(w, kind[i].flag))
				name = kind[i].name;
	free(flags);
	return name;
}

/* Devices. */

/* What to do where the permissions of @path keep us out: the group, if it has one that helps. */
static void permission_remedy(const char *path, char *buf, size_t len)
{
	struct stat st;
	struct group *g = NULL;

	if (!stat(path, &st) && st.st_gid && (st.st_mode & 060) == 060)
		g = getgrgid(st.st_gid);
	if (g)
		snprintf(buf, len, "join its group (sudo usermod -aG %s $USER, then log in again)", g->gr_name);
	else
		snprintf(buf, len,
		         "sudo setfacl -m u:$USER:rw %s, or give it a group (sudo chgrp kvm, chmod 660) and join it",
		         path);
}

/* A device that could not be opened, with -errno @error; @absent is the remedy where it is not there. */
static void add_closed(struct host_report *r, enum host_level level, const char *path, int error, const char *absent)
{
	char remedy[256];

	switch (error) {
	case -ENOENT: host_add(r, level, path, absent, "not there"); break;
	case -ENXIO:
	case -ENODEV: host_add(r, level, path, absent, "has no driver behind it"); break;
	case -EACCES:
		permission_remedy(path, remedy, sizeof(remedy));
		host_add(r, level, path, remedy, "permission denied");
		break;
	case -EPERM:
		host_add(r, level, path, "let it into the container (docker run --device ...)",
		         "forbidden to this container");
		break;
	default: host_add(r, level, path, NULL, "%s", strerror(-error)); break;
	}
}

static void examine_device(struct host_report *r, const char *path, const char *found, const char *absent)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0) {
		add_closed(r, HOST_WARN, path, -errno, absent);
		return;
	}
	close(fd);
	host_add(r, HOST_OK, path, NULL, "%s", found);
}

static void examine_devices(struct host_report *r)
{
	examine_device(r, "/dev/net/tun", geteuid() ? "opens; the tap is made by root (ip tuntap add)" : "opens",
	               "modprobe tun (only for -n tap)");
	examine_device(r, "/dev/vhost-net", "opens", "modprobe vhost_net (only for a faster -n tap)");
	examine_device(r, "/dev/vhost-vsock", "opens", "modprobe vhost_vsock (only for --vsock)");
}

/* KVM. */

static const struct capability {
	unsigned cap;
	const char *name;
	enum host_level level; /* where it is missing */
	const char *lack;
} capabilities[] = {
	{ KVM_CAP_USER_MEMORY, "KVM_CAP_USER_MEMORY", HOST_FAIL, "guest memory" },
	{ KVM_CAP_SET_TSS_ADDR, "KVM_CAP_SET_TSS_ADDR", HOST_FAIL, "real mode" },
	{ KVM_CAP_SET_IDENTITY_MAP_ADDR, "KVM_CAP_SET_IDENTITY_MAP_ADDR", HOST_FAIL, "real mode" },
	{ KVM_CAP_EXT_CPUID, "KVM_CAP_EXT_CPUID", HOST_FAIL, "the processor's features" },
	{ KVM_CAP_IRQCHIP, "KVM_CAP_IRQCHIP", HOST_FAIL, "interrupt controllers" },
	{ KVM_CAP_IRQ_ROUTING, "KVM_CAP_IRQ_ROUTING", HOST_FAIL, "MSI of virtio devices" },
	{ KVM_CAP_SIGNAL_MSI, "KVM_CAP_SIGNAL_MSI", HOST_FAIL, "MSI of virtio devices" },
	{ KVM_CAP_IRQFD, "KVM_CAP_IRQFD", HOST_FAIL, "interrupts of virtio devices" },
	{ KVM_CAP_IOEVENTFD, "KVM_CAP_IOEVENTFD", HOST_FAIL, "kicks of virtio devices" },
	{ KVM_CAP_IMMEDIATE_EXIT, "KVM_CAP_IMMEDIATE_EXIT", HOST_FAIL, "stopping a vCPU" },
	{ KVM_CAP_TSC_DEADLINE_TIMER, "KVM_CAP_TSC_DEADLINE_TIMER", HOST_WARN, "guest timers are coarser and dearer" },
	{ KVM_CAP_GET_TSC_KHZ, "KVM_CAP_GET_TSC_KHZ", HOST_WARN, "a guest measures its clock itself" },
	{ KVM_CAP_ADJUST_CLOCK, "KVM_CAP_ADJUST_CLOCK", HOST_WARN, "a guest's clock runs on while it is paused" },
	{ KVM_CAP_KVMCLOCK_CTRL, "KVM_CAP_KVMCLOCK_CTRL", HOST_WARN, "a guest may report soft lockups after a pause" },
};

static void examine_capabilities(struct host_report *r, int kvm)
{
	unsigned missing = 0;

	for (unsigned i = 0; i < ARRAY_LEN(capabilities); i++) {
		const struct capability *c = &capabilities[i];

		if (kvm_cap(kvm, c->cap) > 0)
			continue;
		missing++;
		host_add(r, c->level, c->name, NEWER_KERNEL, "missing (%s)", c->lack);
	}
	if (!missing)
		host_add(r, HOST_OK, "KVM capabilities", NULL, "all %zu that matter", ARRAY_LEN(capabilities));
}

static void examine_vcpus(struct host_report *r, int kvm)
{
	int max = kvm_cap(kvm, KVM_CAP_MAX_VCPUS), advised = kvm_cap(kvm, KVM_CAP_NR_VCPUS);

	if (max <= 0)
		max = advised > 0 ? advised : 4; /* as KVM's api.rst has it */
	host_add(r, HOST_OK, "vCPUs", NULL, "up to %d a guest (KVM: %d; processors here: %ld)",
	         max < ARCH_MAX_CPUS ? max : ARCH_MAX_CPUS, max, sysconf(_SC_NPROCESSORS_ONLN));
}

/* A processor may have virtualization, and another hypervisor hold it. */
static int examine_vm(struct host_report *r)
{
	static const char name[] = "virtual machine";
	const struct gmem mem = { 0 };
	struct vm_config cfg = { .mem = &mem };
	struct vm *vm = NULL;
	struct vcpu *vcpu = NULL;
	struct err err;
	int error;

	arch_vm_config(&cfg);
	error = vm_new(&cfg, &vm, &err);
	if (!error)
		error = vcpu_new(vm, 0, &vcpu, &err);
	if (error)
		host_add(r, HOST_FAIL, name, error == -EBUSY ? "end the other hypervisor (VirtualBox, VMware)" : NULL,
		         "cannot be made: %s", err.msg);
	else
		host_add(r, HOST_OK, name, NULL, "can be made");
	vcpu_free(vcpu);
	vm_free(vm);
	return error;
}

static void examine_guest_code(struct host_report *r, const char *virt)
{
	static const char name[] = "guest kernel code";
	struct err err;
	int can = arch_can_run_linux(&err);

	if (can < 0)
		host_add(r, HOST_FAIL, name, ELSEWHERE, "cannot tell: %s", err.msg);
	else if (!can)
		host_add(r, HOST_FAIL, name, ELSEWHERE,
		         "KVM only interprets it (no VMX, no SVM), too poorly for Linux");
	else if (virt)
		host_add(r, HOST_OK, name, NULL, "runs on the processor (%s)", virt);
	else
		host_add(r, HOST_OK, name, NULL, "runs, as a probe guest shows (no VMX, no SVM)");
}

/* The remedy where /dev/kvm is not there. */
static const char *kvm_absent(const char *virt)
{
	if (!virt)
		return ELSEWHERE;
	if (!strcmp(virt, "SVM"))
		return "modprobe kvm-amd; for a container: docker run --device /dev/kvm";
	return "modprobe kvm-intel; for a container: docker run --device /dev/kvm";
}

static void examine_kvm(struct host_report *r)
{
	const char *virt = virt_name();
	struct err err;
	int kvm = kvm_open(&err);

	if (kvm == -ENOTTY)
		host_add(r, HOST_FAIL, KVM_PATH, "see what it is: ls -l " KVM_PATH,
		         "is not KVM's device, or not API %d", KVM_API_VERSION);
	else if (kvm < 0)
		add_closed(r, HOST_FAIL, KVM_PATH, kvm, kvm_absent(virt));
	if (kvm < 0)
		return;
	host_add(r, HOST_OK, KVM_PATH, NULL, "API %d", KVM_API_VERSION);
	examine_capabilities(r, kvm);
	examine_vcpus(r, kvm);
	close(kvm);
	if (!examine_vm(r))
		examine_guest_code(r, virt);
}

/* Memory. */

static void examine_hugepages(struct host_report *r)
{
	static const char name[] = "hugepages", remedy[] = "echo 512 >/proc/sys/vm/nr_hugepages (only for --hugepages)";
	long total = meminfo("HugePages_Total:"), size = meminfo("Hugepagesize:");
	long available = meminfo("HugePages_Free:") - meminfo("HugePages_Rsvd:");

	if (total < 0)
		host_add(r, HOST_WARN, name, NULL, "not in this kernel (only for --hugepages)");
	else if (!total)
		host_add(r, HOST_WARN, name, remedy, "none reserved");
	else
		host_add(r, available > 0 ? HOST_OK : HOST_WARN, name, available > 0 ? NULL : remedy,
		         "%ld of %ld free, %ld kB each", available, total, size);
}

static void examine_thp(struct host_report *r)
{
	static const char name[] = "transparent hugepages", path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
	char line[64];

	read_line(path, line, sizeof(line));
	if (strstr(line, "[always]") || strstr(line, "[madvise]"))
		host_add(r, HOST_OK, name, NULL, "%s", line);
	else
		host_add(r, HOST_WARN, name,
		         line[0] ? "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled" : NULL,
		         "%s, so guests run slower", line[0] ? line : "not in this kernel");
}

/* io_uring. */

static int try_uring(unsigned flags)
{
	struct io_uring_params p = { .flags = flags };
	int fd = (int)syscall(__NR_io_uring_setup, 4, &p);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static const char *uring_remedy(int error)
{
	char disabled[16];

	read_line("/proc/sys/kernel/io_uring_disabled", disabled, sizeof(disabled));
	if (error == -ENOSYS)
		return NEWER_KERNEL;
	if (error == -ENOMEM)
		return "ulimit -l unlimited";
	if (error != -EPERM && error != -EACCES)
		return NULL;
	if (disabled[0] && strcmp(disabled, "0"))
		return "sysctl kernel.io_uring_disabled=0";
	return "let the container's seccomp profile or the security policy allow it";
}

static void examine_uring(struct host_report *r)
{
	int error = try_uring(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);

	if (!error) {
		host_add(r, HOST_OK, "io_uring", NULL, "works, with SINGLE_ISSUER and DEFER_TASKRUN");
		return;
	}
	if (error == -EINVAL)
		error = try_uring(0);
	if (!error)
		host_add(r, HOST_WARN, "io_uring", NEWER_KERNEL " (6.1)",
		         "works, but without SINGLE_ISSUER and DEFER_TASKRUN, so disks are slower");
	else
		host_add(r, HOST_WARN, "io_uring", uring_remedy(error), "%s, so disks use threads and are slower",
		         strerror(-error));
}

/* User namespaces. */

static const struct {
	const char *path, *bad, *remedy;
} userns_settings[] = {
	{ "/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000" },
	{ "/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1" },
	{ "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
	  "sysctl kernel.apparmor_restrict_unprivileged_userns=0" },
};

static const char *userns_remedy(void)
{
	char val[16];

	for (unsigned i = 0; i < ARRAY_LEN(userns_settings); i++) {
		read_line(userns_settings[i].path, val, sizeof(val));
		if (!strcmp(val, userns_settings[i].bad))
			return userns_settings[i].remedy;
	}
	return "let the container or the security policy allow them";
}

/* Makes one in a child, and uses it: some hosts let anybody make one, but grant no rights in it. 0 or -errno. */
static int try_userns(void)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		return -errno;
	if (!pid)
		_exit(unshare(CLONE_NEWUSER) || unshare(CLONE_NEWNS) ? errno : 0);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -EPERM; /* a seccomp filter may kill */
}

static void examine_userns(struct host_report *r)
{
	int error = try_userns();

	if (error)
		host_add(r, HOST_WARN, "user namespaces", userns_remedy(), "%s, so no sandbox without root",
		         strerror(-error));
	else
		host_add(r, HOST_OK, "user namespaces", NULL, "can be made");
}

void host_examine(struct host_report *out)
{
	out->n = 0;
	examine_kvm(out);
	examine_hugepages(out);
	examine_thp(out);
	examine_uring(out);
	examine_devices(out);
	examine_userns(out);
}
