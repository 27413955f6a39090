// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

static int find_functions(const struct library *lib, void *handle, void *fns, struct err *err)
{
	for (const struct library_fn *f = lib->fns; f->name; f++) {
		void *p = dlsym(handle, f->name);

		if (!p)
			return err_set(err, -ENOSYS, "%s (Debian's %s) has no function %s: is it too old?", lib->soname,
			               lib->package, f->name);
		memcpy((char *)fns + f->offset, &p, sizeof(p));
	}
	return 0;
}

int library_open(const struct library *lib, void *fns, void **handle, struct err *err)
{
	int error;

	*handle = dlopen(lib->soname, RTLD_NOW | RTLD_LOCAL);
	if (!*handle)
		return err_set(err, -ENOENT, "%s is needed: install Debian's package %s (%s)", lib->soname,
		               lib->package, dlerror());
	error = find_functions(lib, *handle, fns, err);
	if (error) {
		library_close(*handle);
		*handle = NULL;
	}
	return error;
}

void library_close(void *handle)
{
	if (handle)
		dlclose(handle);
}
