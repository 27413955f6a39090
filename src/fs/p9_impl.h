/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef FS_P9_IMPL_H
#define FS_P9_IMPL_H

#include "fs/p9.h"
#include "fs/p9wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>

/*
 * How it works
 *
 * A message becomes an operation (struct op), and an operation has three steps:
 *   check   on the loop: looks at fids, takes what it needs of them
 *   work    system calls only, with files it holds references to and copies of
 *           its inputs; leaves its outcome in the op
 *   finish  on the loop: puts the outcome into the session and writes the reply
 * The work is done at once on the loop (op->nowait) where all files are on
 * local file systems. If it finds that it would have to wait it sets op->again,
 * and is done again by a worker thread, as it is from the start where a file
 * system may be slow.
 *
 * Two worlds, then. The session (struct p9, fids, locks, requests) belongs to
 * the loop and can vanish at any time. What a worker sees - struct host, struct
 * file, struct op - is counted and goes with its last user. A worker that hangs
 * in a system call holds only those.
 *
 * An op whose request is forgotten (flushed, reset) has lost its req and fids;
 * if it still waits for a worker it goes at once, else when it comes back, with
 * all that it opened.
 */

#define NAME_SIZE   256  /* with the NUL */
#define STRING_SIZE 4096 /* likewise; symlink targets are the longest */

struct op;
struct file;
struct dirbuf;
struct qid_big;

/* Something for a worker. */
struct job {
	void (*run)(struct job *j);
	struct job *next;
};

/* Numbers of files (p9qid.c). */
struct qids {
	dev_t root;           /* [c] */
	pthread_mutex_t lock; /* leaf; nothing waits under it */
	dev_t *devs;
	unsigned ndevs;
	struct qid_big **big;
	unsigned nbig;
};

/* What operations need to know, and the workers. Outlives the session as long as somebody works. */
struct host {
	atomic_uint refs;

	/* [c] */
	enum p9_map map;
	bool ro;
	uid_t euid;
	gid_t egid;
	dev_t dev; /* of the root */
	ino_t ino;
	int fds; /* /proc/self/fd: the way from a descriptor to a name, without looking up all of that each time */
	struct loop *loop;
	struct p9 *p9; /* [l] */

	struct qids qids;
	atomic_uint ndirs; /* readdir buffers */

	/* Tests: every file system is slow, and a worker calls this first. [c] once files are there */
	void (*hook)(void *arg);
	void *hook_arg;

	/* under the lock */
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct job *queue, **queue_end;
	unsigned workers, idle;
	struct op *done, **done_end; /* worked on, to be finished on the loop */
	struct loop_task task;
	bool dead; /* no session any more: nothing is posted */
};

/* A descriptor with its users: a place (O_PATH), an opened file or one that holds locks. */
struct file {
	atomic_uint refs;
	struct host *host;
	int fd;                   /* [c]; of locks: under the lock, -1 until the first */
	bool slow;                /* [c] its file system may keep us waiting */
	atomic_bool no_nowait[2]; /* RWF_NOWAIT is not known here: to reads, to writes */
	unsigned flags;           /* [c] opened: the host's O_* flags */
	mode_t type;              /* [c] S_IFMT, as the host has it */
	dev_t dev;                /* [c] */
	ino_t ino;                /* [c] */
	pthread_mutex_t lock; /* for @dir, and @fd of locks; the loop takes it for local files only, which workers leave
	                         alone */
	struct dirbuf *dir;
	struct job job; /* closing by a worker */
};

/* A value that is read or written by its own fid (p9xattr.c). */
struct xattr {
	char name[NAME_SIZE];
	bool writing;
	uint32_t flags;
	size_t size, have;
	char *value;
};

struct lock;
struct lock_link;

struct fid {
	uint32_t num;
	struct fid *next;
	unsigned refs; /* the table's and operations' */
	bool gone;     /* not in the table any more */
	struct file *file;
	struct file *open; /* NULL: not opened */
	struct xattr *xattr;
	uid_t uid; /* who attached; P9_NONUNAME: unknown */
	struct lock_link *locks;
};

struct msg {
	/*
	 * What comes on the wire: f g the first and second fid, looked up; N the
	 * number of a new one; b h u q numbers of 1 2 4 8 bytes into op->u; n a
	 * name, s another string, into op->s; x a string that we ignore; w the
	 * names of a walk; o a number of 4 bytes that may be missing; d data.
	 */
	const char *format; /* NULL: no such message */
	unsigned flags;
	unsigned reply;              /* least size of the reply's body */
	int (*check)(struct op *op); /* 0; 1: nothing to work on; -errno */
	int (*work)(struct op *op);  /* 0 or -errno */
	int (*finish)(struct op *op, struct wire *reply);
};

#define MSG_CHANGES 1 /* refused on a read-only share */
#define MSG_WAITS   2 /* always done by a worker */
#define MSG_EARLY   4 /* allowed before Tversion */
#define MSG_VALUE   8 /* allowed with a fid that holds an extended attribute */

struct op {
	struct job job;
	struct host *host;
	const struct msg *msg;
	uint16_t tag;

	/* [l] */
	struct p9_req *req; /* NULL: forgotten */
	struct fid *fid, *fid2;
	uint32_t newfid;
	struct op *next, **pprev; /* in the session's list */
	uint32_t room;            /* for the reply */
	bool later;               /* the reply goes out after those that are ready */

	/* Inputs. References are the op's own. */
	bool nowait; /* on the loop: rather set @again than wait */
	bool again;
	uid_t uid;
	struct file *root, *file, *file2, *open;
	struct xattr *xattr;
	uint64_t u[9];
	char *s[P9_MAX_WALK];
	unsigned ns;
	struct wire data; /* Twrite: the client's memory, on the loop only */
	void *buf;        /* private data, of @len bytes */
	size_t len;

	/* Outcome */
	struct op *done_next;
	int error;
	struct file *made, *made_open;
	struct statx st;
	struct qid qid[P9_MAX_WALK];
	unsigned nqid;
	size_t count;

	char text[]; /* strings */
};

#define P9_MIN_MSIZE 4096u
/*
 * Nobody gains by more: the lists that messages come in have at most P9_MAX_IOV
 * pieces, which for a guest are pages of 4 KiB.
 */
#define P9_MAX_MSIZE (P9_MAX_IOV * 4096u)
#define P9_MAX_OPS   1024 /* not finished */

struct p9 {
	struct host *host;
	struct loop *loop;
	struct file *root;
	uint32_t msize; /* 0: no version yet */
	struct fid **fids;
	unsigned nbuckets, nfids; /* a power of two */
	unsigned nxattrs;
	struct lock *locks;
	unsigned nlocks, nlinks;
	struct op *ops; /* with a worker */
	unsigned nops;
	struct p9_req *ready, **ready_end; /* to be told on the next turn */
	bool held;
};

/* p9srv.c */
void p9_forget_ops(struct p9 *p, int tag, bool tell); /* those with @tag, -1: all */
void op_free(struct op *op);                          /* any thread, once it is forgotten or finished */
/* For tests, before the first message: each file system is slow, workers call @hook before they work. */
void p9_set_hook(struct p9 *p, void (*hook)(void *arg), void *arg);
#define P9_NMSGS 128
extern const struct msg p9_msgs[P9_NMSGS]; /* by type */

/* p9host.c */
int host_new(const struct p9_export *ex, struct loop *loop, struct host **out, struct err *err);
void host_put(struct host *h);
struct host *host_get(struct host *h);
void host_prepare(void); /* what the process needs for a server */
/* Whether the file system of @fd may keep us waiting. Asking may, too. */
bool host_is_slow(struct host *h, int fd);
/* @fd is the new file's, or closed. */
int file_new(struct host *h, int fd, const struct statx *st, bool slow, struct file **out);
struct file *file_get(struct file *f); /* NULL is fine */
void file_put(struct file *f);         /* NULL is fine; any thread; does not wait */
int file_stat(int fd, struct statx *st);
/*
 * "N" in host->fds, and "/proc/self/fd/N" for calls that take no directory: names the very file that @fd is open on,
 * whatever happened to its names.
 */
#define PROC_FD_SIZE 32
const char *fd_name(int fd, char *buf);
const char *proc_fd(int fd, char *buf);
/* Opens the file of a place anew. */
int file_reopen(const struct host *h, int fd, int flags);

/* p9work.c */
void pool_push(struct host *h, struct job *j);
bool pool_cancel(struct host *h, struct job *j); /* true: taken back before it began */
void pool_done(struct op *op);                   /* worker: hands it to the loop */
struct op *pool_reap(struct host *h);            /* loop: the next that is done, or NULL */
void pool_end(struct host *h);                   /* no op comes back any more; workers end when the queue is empty */

/* p9fid.c */
struct fid *fid_find(struct p9 *p, uint32_t num);
/* A new fid for @num at @file (takes a reference of its own): -EBADF if there is one, -EMFILE. */
int fid_add(struct p9 *p, uint32_t num, struct file *file, uid_t uid, struct fid **out);
void fid_get(struct fid *f);
void fid_put(struct p9 *p, struct fid *f); /* NULL is fine */
void fid_clunk(struct p9 *p, struct fid *f);
void fid_clunk_all(struct p9 *p);

/* p9walk.c */
/* @name: one component, not "..". Opens the place and tells its attributes as the host has them. */
int walk_one(struct op *op, struct file *dir, const char *name, struct file **out, struct statx *st);
/* Where @f is now: its directory and name. */
int walk_parent(struct op *op, struct file *f, struct file **dir, char name[NAME_SIZE]);
int walk_check(struct op *op);
int walk_work(struct op *op);
int walk_finish(struct op *op, struct wire *w);

/* p9qid.c */
void qids_init(struct qids *q, dev_t root);
void qids_exit(struct qids *q);
uint64_t qid_path(struct qids *q, dev_t dev, ino_t ino);
void qid_make(struct host *h, const struct statx *st, struct qid *q);
uint8_t qid_type(mode_t mode);

/* p9id.c: what the client is shown, and what becomes of what it says */
int id_stat(struct host *h, int fd, struct statx *st);                       /* attributes as the client sees them */
void id_show(struct host *h, int fd, struct statx *st);                      /* from the host's to the client's */
mode_t id_type_at(struct host *h, int dirfd, const char *name, mode_t type); /* mapped: type of a directory's entry */
mode_t id_create_mode(const struct host *h, mode_t mode);                    /* the mode to create with */
/* Owner, group and mode of what was just made in @dir, whose attributes @st are; they become the client's. */
int id_made(struct op *op, struct file *dir, int fd, struct statx *st, mode_t mode, gid_t gid, dev_t rdev);
int id_chown(struct host *h, int fd, uid_t uid, gid_t gid); /* -1: stays */
int id_chmod(struct host *h, int fd, mode_t mode);

/* p9file.c */
int lopen_check(struct op *op);
int lopen_work(struct op *op);
int lopen_finish(struct op *op, struct wire *w);
int lcreate_check(struct op *op);
int lcreate_work(struct op *op);
int read_check(struct op *op);
int read_work(struct op *op);
int read_finish(struct op *op, struct wire *w);
int write_check(struct op *op);
int write_keep(struct op *op); /* copies the data for a worker */
int write_work(struct op *op);
int write_finish(struct op *op, struct wire *w);
int fsync_check(struct op *op);
int fsync_work(struct op *op);

/* p9dir.c */
#define P9_MAX_DIRS 1024 /* readdir buffers */
int readdir_check(struct op *op);
int readdir_work(struct op *op);
int readdir_finish(struct op *op, struct wire *w);
void dirbuf_free(struct host *h, struct dirbuf *d);

/* p9name.c */
/* Whether @name may be made, or removed. @what: the error for "." and "..". */
int name_check(const char *name, int what);
int make_check(struct op *op);
int symlink_work(struct op *op);
int mknod_work(struct op *op);
int mkdir_work(struct op *op);
int make_finish(struct op *op, struct wire *w);
int link_work(struct op *op);
int rename_check(struct op *op);
int rename_work(struct op *op);
int renameat_check(struct op *op);
int renameat_work(struct op *op);
int unlinkat_check(struct op *op);
int unlinkat_work(struct op *op);
int remove_check(struct op *op);
int remove_work(struct op *op);

/* p9attr.c */
int getattr_work(struct op *op);
int getattr_finish(struct op *op, struct wire *w);
int setattr_check(struct op *op);
int setattr_work(struct op *op);
int readlink_work(struct op *op);
int readlink_finish(struct op *op, struct wire *w);
int statfs_work(struct op *op);
int statfs_finish(struct op *op, struct wire *w);

/* p9xattr.c */
#define P9_MAX_XATTRS 256 /* fids that hold a value */
void xattr_free(struct xattr *x);
int xattrwalk_check(struct op *op);
int xattrwalk_work(struct op *op);
int xattrwalk_finish(struct op *op, struct wire *w);
int xattrcreate_check(struct op *op);
int xattr_write(struct op *op);                 /* Twrite */
void xattr_read(struct op *op, struct wire *w); /* Tread */
int xattr_set(struct op *op);                   /* the work of Tclunk */

/* p9lock.c */
#define P9_MAX_LOCKS 4096 /* owners of locks */
#define P9_MAX_LINKS 65536
void lock_unlink_all(struct p9 *p, struct fid *f);
int lock_check(struct op *op);
int lock_work(struct op *op);
int lock_finish(struct op *op, struct wire *w);
int getlock_check(struct op *op);
int getlock_work(struct op *op);
int getlock_finish(struct op *op, struct wire *w);

#endif
