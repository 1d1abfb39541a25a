/* Records what a process does to the files below one directory; loaded with LD_PRELOAD.
 *
 * HEADRACE_RECORD_ROOT is the directory, HEADRACE_RECORD_LOG the file that takes the events, in the order in which they
 * took effect. The log is opened in append mode, so that another process (the driver of the workload) can put its own
 * events between: what it writes after an acknowledgement has arrived comes after everything that led to it.
 *
 * Changes are made and noted under one lock, so their order in the log is the order on the disk. A sync is noted twice,
 * when it begins and when it has ended, and the lock is free meanwhile: what is written while it runs is not covered.
 *
 * An event is a header and a text or data; see recording.py, which reads them. What this file does not understand (a
 * writable shared mapping, a hard link) is noted as UNEXPECTED and fails the test.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    OPEN = 1, CLOSE, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, RMDIR, ALLOCATE, UNEXPECTED
};

struct header {
    uint32_t size;
    uint16_t kind;
    uint16_t magic; /* a killed process may leave half an event; the reader notices by the next one's magic */
    int64_t number; /* descriptor, or the number of a sync */
    int64_t position;
    int64_t detail; /* flags of open, mode of fallocate, result of a sync, ... */
};

#define MAGIC 0x4852
#define MAX_DESCRIPTORS 65536
static unsigned char tracked[MAX_DESCRIPTORS];
static unsigned char appends[MAX_DESCRIPTORS];
static char root[PATH_MAX];
static size_t root_size;
static int log_descriptor = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long syncs;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void die(const char *what) {
    fprintf(stderr, "recorder: %s: %s\n", what, strerror(errno));
    _exit(99);
}

static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pread)(int, void *, size_t, off64_t);
static int (*real_open)(const char *, int, ...);

__attribute__((constructor)) static void start(void) {
    if (log_descriptor >= 0 || !getenv("HEADRACE_RECORD_ROOT")) return;
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_pread = dlsym(RTLD_NEXT, "pread64");
    real_open = dlsym(RTLD_NEXT, "open64");
    snprintf(root, sizeof root, "%s", getenv("HEADRACE_RECORD_ROOT"));
    root_size = strlen(root);
    int low = real_open(getenv("HEADRACE_RECORD_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (low < 0) die("the log cannot be opened");
    log_descriptor = fcntl(low, F_DUPFD_CLOEXEC, 60000); /* out of the way of the process's own */
    if (log_descriptor < 0) log_descriptor = low;
}

static void note(uint16_t kind, int64_t number, int64_t position, int64_t detail, const void *data, size_t size) {
    struct header header = {(uint32_t)(sizeof header + size), kind, MAGIC, number, position, detail};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)data, size}};
    if (real_writev(log_descriptor, parts, size ? 2 : 1) != (ssize_t)header.size) die("the log cannot be written");
}

static void unexpected(const char *what) { note(UNEXPECTED, 0, 0, 0, what, strlen(what)); }

/* The absolute path, without resolving the last component; 1 if it is the directory or below it. */
static int below_root(int directory, const char *path, char *absolute) {
    if (log_descriptor < 0) start();
    if (log_descriptor < 0 || !path) return 0;
    char base[PATH_MAX];
    if (path[0] == '/') {
        snprintf(absolute, PATH_MAX, "%s", path);
    } else {
        if (directory == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            ssize_t size = readlink(link, base, sizeof base - 1);
            if (size < 0) return 0;
            base[size] = 0;
        }
        if (strlen(base) + strlen(path) + 2 > PATH_MAX) return 0;
        strcpy(absolute, base);
        strcat(absolute, "/");
        strcat(absolute, path);
    }
    return !strncmp(absolute, root, root_size) && (absolute[root_size] == '/' || !absolute[root_size]);
}

static int is_tracked(int fd) { return fd >= 0 && fd < MAX_DESCRIPTORS && tracked[fd]; }

static int opened(int directory, const char *path, int flags, mode_t mode) {
    static int (*real)(int, const char *, int, ...);
    if (!real) real = dlsym(RTLD_NEXT, "openat64");
    char absolute[PATH_MAX];
    if (!below_root(directory, path, absolute)) {
        int fd = real(directory, path, flags, mode);
        if (is_tracked(fd)) tracked[fd] = 0;
        return fd;
    }
    pthread_mutex_lock(&lock);
    int fd = real(directory, path, flags, mode);
    int error = errno;
    if (fd >= 0) {
        if (fd >= MAX_DESCRIPTORS) die("too many descriptors");
        tracked[fd] = 1;
        appends[fd] = (flags & O_APPEND) != 0;
        if ((flags & O_TMPFILE) == O_TMPFILE) unexpected("O_TMPFILE");
        note(OPEN, fd, 0, flags, absolute, strlen(absolute));
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

#define OPEN_LIKE(name) \
    int name(const char *path, int flags, ...) { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = mode_of(flags, arguments); \
        va_end(arguments); \
        return opened(AT_FDCWD, path, flags, mode); \
    }
#define OPENAT_LIKE(name) \
    int name(int directory, const char *path, int flags, ...) { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = mode_of(flags, arguments); \
        va_end(arguments); \
        return opened(directory, path, flags, mode); \
    }
OPEN_LIKE(open)
OPEN_LIKE(open64)
OPENAT_LIKE(openat)
OPENAT_LIKE(openat64)
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int directory, const char *path, int flags) { return opened(directory, path, flags, 0); }
int __openat64_2(int directory, const char *path, int flags) { return opened(directory, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

int close(int fd) {
    REAL(close);
    if (!is_tracked(fd)) return real(fd);
    pthread_mutex_lock(&lock);
    tracked[fd] = 0;
    note(CLOSE, fd, 0, 0, 0, 0);
    int result = real(fd), error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

/* Note what is now in the file from `position` on, read back: whatever call put it there. */
static void note_written(int fd, off64_t position, ssize_t size) {
    char *data = malloc(size);
    if (!data) die("no memory");
    for (ssize_t have = 0; have < size;) {
        char path[64];
        ssize_t count = real_pread(fd, data + have, size - have, position + have);
        if (count < 0 && errno == EBADF) { /* opened for writing only */
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            int reader = real_open(path, O_RDONLY | O_CLOEXEC);
            REAL(close);
            count = real_pread(reader, data + have, size - have, position + have);
            real(reader);
        }
        if (count <= 0) die("what was written cannot be read back");
        have += count;
    }
    note(WRITE, fd, position, 0, data, size);
    free(data);
}

static off64_t end_of(int fd) {
    struct stat64 status;
    if (fstat64(fd, &status)) die("fstat");
    return status.st_size;
}

#define POSITIONED(call, position_after) \
    if (!is_tracked(fd)) return call; \
    pthread_mutex_lock(&lock); \
    ssize_t result = call; \
    int error = errno; \
    if (result > 0) note_written(fd, (position_after) - result, result); \
    pthread_mutex_unlock(&lock); \
    errno = error; \
    return result

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    POSITIONED(real(fd, data, size), lseek64(fd, 0, SEEK_CUR));
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!real_writev) real_writev = dlsym(RTLD_NEXT, "writev");
    POSITIONED(real_writev(fd, parts, count), lseek64(fd, 0, SEEK_CUR));
}
/* In append mode Linux appends, whatever the position says. */
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t position) {
    REAL(pwrite64);
    POSITIONED(real(fd, data, size, position), appends[fd] ? end_of(fd) : position + result);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t position) { return pwrite64(fd, data, size, position); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t position) {
    REAL(pwritev64);
    POSITIONED(real(fd, parts, count, position), appends[fd] ? end_of(fd) : position + result);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t position) {
    return pwritev64(fd, parts, count, position);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t position, int flags) {
    REAL(pwritev64v2);
    POSITIONED(real(fd, parts, count, position, flags),
               position < 0 ? lseek64(fd, 0, SEEK_CUR) : appends[fd] ? end_of(fd) : position + result);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t position, int flags) {
    return pwritev64v2(fd, parts, count, position, flags);
}
ssize_t copy_file_range(int from, off64_t *from_position, int fd, off64_t *position, size_t size, unsigned flags) {
    REAL(copy_file_range);
    POSITIONED(real(from, from_position, fd, position, size, flags), position ? *position : lseek64(fd, 0, SEEK_CUR));
}
ssize_t sendfile64(int fd, int from, off64_t *from_position, size_t size) {
    REAL(sendfile64);
    POSITIONED(real(fd, from, from_position, size), lseek64(fd, 0, SEEK_CUR));
}
ssize_t sendfile(int fd, int from, off_t *from_position, size_t size) {
    return sendfile64(fd, from, (off64_t *)from_position, size);
}
ssize_t splice(int from, off64_t *from_position, int fd, off64_t *position, size_t size, unsigned flags) {
    REAL(splice);
    POSITIONED(real(from, from_position, fd, position, size, flags), position ? *position : lseek64(fd, 0, SEEK_CUR));
}

/* Calls that change something and return 0: made and noted under the lock. */
#define CHANGE(condition, call, noted) \
    if (!(condition)) return call; \
    pthread_mutex_lock(&lock); \
    int result = call, error = errno; \
    if (!result) { noted; } \
    pthread_mutex_unlock(&lock); \
    errno = error; \
    return result

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    CHANGE(is_tracked(fd), real(fd, size), note(TRUNCATE, fd, size, 0, 0, 0));
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int truncate64(const char *path, off64_t size) {
    REAL(truncate64);
    char absolute[PATH_MAX];
    CHANGE(below_root(AT_FDCWD, path, absolute), real(path, size), unexpected("truncate"));
}
int truncate(const char *path, off_t size) { return truncate64(path, size); }
int fallocate64(int fd, int mode, off64_t position, off64_t size) {
    REAL(fallocate64);
    CHANGE(is_tracked(fd), real(fd, mode, position, size), note(ALLOCATE, fd, position, mode, &size, sizeof size));
}
int fallocate(int fd, int mode, off_t position, off_t size) { return fallocate64(fd, mode, position, size); }
int posix_fallocate64(int fd, off64_t position, off64_t size) {
    REAL(posix_fallocate64);
    CHANGE(is_tracked(fd), real(fd, position, size), note(ALLOCATE, fd, position, 0, &size, sizeof size));
}
int posix_fallocate(int fd, off_t position, off_t size) { return posix_fallocate64(fd, position, size); }

static int synced(int (*real)(int), int fd) {
    if (!is_tracked(fd)) return real(fd);
    long number = atomic_fetch_add(&syncs, 1);
    pthread_mutex_lock(&lock);
    note(SYNC_BEGIN, number, 0, fd, 0, 0);
    pthread_mutex_unlock(&lock);
    int result = real(fd), error = errno;
    pthread_mutex_lock(&lock);
    note(SYNC_END, number, 0, result, 0, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}
int fsync(int fd) {
    REAL(fsync);
    return synced(real, fd);
}
int fdatasync(int fd) {
    REAL(fdatasync);
    return synced(real, fd);
}
/* Promises nothing about metadata or the disk's own cache: no more than the data happening to be there. */
int sync_file_range(int fd, off64_t position, off64_t size, unsigned flags) {
    REAL(sync_file_range);
    return real(fd, position, size, flags);
}
void sync(void) {
    REAL(sync);
    if (log_descriptor >= 0) unexpected("sync");
    real();
}
int syncfs(int fd) {
    REAL(syncfs);
    CHANGE(is_tracked(fd), real(fd), unexpected("syncfs"));
}

static int renamed(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    REAL(renameat2);
    char paths[2 * PATH_MAX], target[PATH_MAX];
    int from_here = below_root(from_directory, from, paths), to_here = below_root(to_directory, to, target);
    CHANGE(from_here || to_here, real(from_directory, from, to_directory, to, flags), {
        if (!from_here || !to_here || flags) unexpected("rename across the root, or with flags");
        size_t size = strlen(paths) + 1;
        strcpy(paths + size, target);
        note(RENAME, 0, 0, 0, paths, size + strlen(target));
    });
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return renamed(from_directory, from, to_directory, to, 0);
}
int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    return renamed(from_directory, from, to_directory, to, flags);
}

int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat);
    char absolute[PATH_MAX];
    CHANGE(below_root(directory, path, absolute), real(directory, path, flags),
           note(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, 0, absolute, strlen(absolute)));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat64 status;
    if (lstat64(path, &status)) return -1;
    return unlinkat(AT_FDCWD, path, S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0);
}
int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(mkdirat);
    char absolute[PATH_MAX];
    CHANGE(below_root(directory, path, absolute), real(directory, path, mode),
           note(MKDIR, 0, 0, 0, absolute, strlen(absolute)));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    REAL(linkat);
    char absolute[PATH_MAX];
    CHANGE(below_root(to_directory, to, absolute), real(from_directory, from, to_directory, to, flags),
           unexpected("link"));
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int symlinkat(const char *from, int directory, const char *to) {
    REAL(symlinkat);
    char absolute[PATH_MAX];
    CHANGE(below_root(directory, to, absolute), real(from, directory, to), unexpected("symlink"));
}
int symlink(const char *from, const char *to) { return symlinkat(from, AT_FDCWD, to); }

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t position) {
    REAL(mmap64);
    if (is_tracked(fd) && (flags & MAP_SHARED) && (protection & PROT_WRITE)) {
        pthread_mutex_lock(&lock);
        unexpected("a shared writable mapping");
        pthread_mutex_unlock(&lock);
    }
    return real(address, size, protection, flags, fd, position);
}
void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t position) {
    return mmap64(address, size, protection, flags, fd, position);
}
